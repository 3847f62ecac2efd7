"""The generated protobuf code and the enums that mirror the contract's words."""

from pathlib import Path

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from headrace.schemas.event import FINISH_REASONS
from headrace.schemas.proto.headrace.v1 import generation_pb2 as pb
from headrace.schemas.request import GenerationRequest, Message
from tests.proto import PROTO, ROOT, generate


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """`python -m tests.proto` was run after the last change."""
    generate(tmp_path)
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / PROTO).parent.iterdir()}
    assert len(made) == 3
    for name, text in made.items():
        assert (ROOT / "src" / PROTO).with_name(name).read_text("utf-8") == text, name


def test_every_field_of_a_request_can_be_said() -> None:
    """All but the tenant, which is the key's; and `background`, which is the gateway's."""
    there = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    assert there ^ set(GenerationRequest.model_fields) == {"tenant", "background"}


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        (pb.Context, ("append", "replace")),
        (pb.Truncation, ("disabled", "auto")),
        (pb.ResponseFormat.Type, ("text", "json_object", "json_schema")),
        (pb.FinishReason, FINISH_REASONS),
        (pb.Role, Message.model_fields["role"].annotation.__args__),  # type: ignore[union-attr]
    ],
)
def test_enums_have_the_words_of_the_contract(
    enum: EnumTypeWrapper, words: tuple[str, ...]
) -> None:
    """In upper case, behind the enum's name, and zero is unspecified."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    assert set(enum.keys()) == {prefix + word.upper() for word in ("unspecified", *words)}
