"""The Redis scripts: each is one atomic step of the protocol (docs/delivery.md).

A journal is a hash: `token` `attempt` `source` `session` and, once the generation has started,
`start` (JSON), `prompt` and `ids` (little-endian uint32 each), `bounds` (uint32: tokens at the end
of each chunk), `confirmed` (events acknowledged by Kafka), `ending` (JSON), `cancel`; at the end
`done`. `failures` counts how often it failed or ended its worker; `runner` is the worker that has
claimed it, `claimed` the tokens it found, `alone` that no other began to run there then
(failures.py). Tokens are milliseconds of this century: below 2^53, Lua's numbers hold them exactly.

NOTE: a full Redis refuses the first write of a script if it takes memory, and none after it. So the
first one is an HSET everywhere, also where a DEL would come first.
"""

OWN = """
-- KEYS fence; ARGV clock in ms. own: a token larger than any before, whatever the clocks say.
local token = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
redis.call('SET', KEYS[1], string.format('%.0f', token))
return token
"""

CLAIM = """
-- KEYS journal, early cancel; ARGV token, source, session, ttl_ms, may create ('1'),
-- default id ('1'), runner. Answers with what stood there of the runner before this one.
local found = redis.call('HMGET', KEYS[1], 'token', 'source', 'start', 'ending', 'done')
if found[1] and found[2] ~= ARGV[2] and ARGV[6] ~= '1' then return {'duplicate'} end
local recreated = found[1] and found[2] ~= ARGV[2]
if found[1] and not recreated then
  if tonumber(found[1]) > tonumber(ARGV[1]) then return {'fenced'} end
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  -- nothing of this attempt was ever published, but its owner may not have had the answer, and have
  -- gone on without a journal under a larger one
  if not (found[3] or found[4] or found[5]) then
    redis.call('HSET', KEYS[1], 'attempt', ARGV[1])
  end
else
  if ARGV[5] ~= '1' then return {'absent'} end
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1],
    'token', ARGV[1], 'attempt', ARGV[1], 'source', ARGV[2], 'session', ARGV[3])
end
if redis.call('SISMEMBER', KEYS[2], ARGV[3]) == 1 then
  redis.call('HSET', KEYS[1], 'cancel', '1')
end
redis.call('DEL', KEYS[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local fields = redis.call('HGETALL', KEYS[1])
if not found[5] then
  local claimed = redis.call('HSTRLEN', KEYS[1], 'ids') / 4
  redis.call('HSET', KEYS[1], 'runner', ARGV[7], 'claimed', claimed)
  redis.call('HDEL', KEYS[1], 'alone')
end
if found[1] and not recreated then return {'resumed', fields} end
return {'created', fields}
"""

NOTE_FAILURES = """
-- KEYS journal; ARGV token, failures, alone ('1' or ''). What the next owner must know if this one
-- does not live to tell.
local token = redis.call('HGET', KEYS[1], 'token')
if not token then return 'absent' end
if token ~= ARGV[1] then return 'fenced' end
redis.call('HSET', KEYS[1], 'failures', ARGV[2], 'alone', ARGV[3])
return 'ok'
"""

SIGN_ON = """
-- KEYS worker; ARGV valid_ms, ttl_ms. It lives until valid_ms from now, by the clock of Redis. The
-- key stays for longer, so that a Redis short of memory does not evict it first.
local now = redis.call('TIME')
local until_ms = now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[1]
redis.call('SET', KEYS[1], string.format('%.0f', until_ms), 'PX', ARGV[2])
"""

SIGN_OFF = """
-- KEYS worker. It has failed.
redis.call('DEL', KEYS[1])
"""

IS_SIGNED_ON = """
-- KEYS worker
local until_ms = redis.call('GET', KEYS[1])
local now = redis.call('TIME')
if until_ms and now[1] * 1000 + math.floor(now[2] / 1000) < tonumber(until_ms) then return 1 end
return 0
"""

FLUSH = """
-- KEYS journal; ARGV token, source, ids kept, new ids, bounds kept, new bounds, confirmed, start,
-- prompt, ending, ttl_ms, attempt. Appends what this owner made since its last flush; what it
-- repeats is the same.
local old = redis.call('HMGET', KEYS[1],
  'token', 'source', 'ids', 'bounds', 'cancel', 'done', 'start', 'attempt')
if not old[1] then return 'absent' end
if tonumber(old[1]) > tonumber(ARGV[1]) then return 'fenced' end
-- Redis was emptied and another record with this id made its journal here, or it went back to an
-- earlier attempt: ours is lost
if old[2] ~= ARGV[2] or old[8] ~= ARGV[12] then return 'absent' end
local ids, bounds = old[3] or '', old[4] or ''
local ids_kept, bounds_kept = ARGV[3] * 4, ARGV[5] * 4
-- late: a flush that was given up, and arrives after the one that replaced it
if old[6] or #ids > ids_kept + #ARGV[4] or #bounds > bounds_kept + #ARGV[6] then return 'fenced' end
-- a replica that was behind became the master: the tail is lost, so the journal is
if #ids < ids_kept or #bounds < bounds_kept then return 'absent' end
-- and ids without the seed that they came from are of no use to anybody
if ARGV[4] ~= '' and ARGV[8] == '' and not old[7] then return 'absent' end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'ids', string.sub(ids, 1, ids_kept) .. ARGV[4],
  'bounds', string.sub(bounds, 1, bounds_kept) .. ARGV[6], 'confirmed', ARGV[7])
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'start', ARGV[8], 'prompt', ARGV[9]) end
if ARGV[10] ~= '' then redis.call('HSET', KEYS[1], 'ending', ARGV[10]) end
redis.call('PEXPIRE', KEYS[1], ARGV[11])
if old[5] then return 'cancelled' end
return 'ok'
"""

ADOPT = """
-- KEYS journal, early cancel; ARGV token, attempt, source, session, ids, bounds, confirmed, start,
-- prompt, ending, ttl_ms, may create ('1'), runner. Writes the whole journal where there is none,
-- or an older owner's; a cancel that stands there, or came while there was none, is kept.
local old = redis.call('HMGET', KEYS[1],
  'token', 'attempt', 'ids', 'bounds', 'session', 'cancel', 'done', 'start', 'ending', 'failures')
if not old[1] and ARGV[12] ~= '1' then return 'absent' end
if old[1] and tonumber(old[1]) > tonumber(ARGV[1]) then return 'fenced' end
-- late: an adopt that was given up, and arrives after the one that replaced it
if old[1] == ARGV[1] and old[2] == ARGV[2]
  and (old[7] or #(old[3] or '') > #ARGV[5] or #(old[4] or '') > #ARGV[6]
    or old[8] and ARGV[8] == '' or old[9] and ARGV[10] == '') then return 'fenced' end
local cancelled = old[5] == ARGV[4] and old[6] or redis.call('SISMEMBER', KEYS[2], ARGV[4]) == 1
redis.call('HSET', KEYS[1], 'token', ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'attempt', ARGV[2], 'source', ARGV[3],
  'session', ARGV[4], 'ids', ARGV[5], 'bounds', ARGV[6], 'confirmed', ARGV[7],
  'runner', ARGV[13], 'claimed', #ARGV[5] / 4, 'failures', old[10] or '0')
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'start', ARGV[8], 'prompt', ARGV[9]) end
if ARGV[10] ~= '' then redis.call('HSET', KEYS[1], 'ending', ARGV[10]) end
if cancelled then redis.call('HSET', KEYS[1], 'cancel', '1') end
redis.call('PEXPIRE', KEYS[1], ARGV[11])
if cancelled then return 'cancelled' end
return 'ok'
"""

CONFIRM = """
-- KEYS journal; ARGV token, source, confirmed, ttl_ms. confirm: all is published; is the journal
-- still mine? Then only what tells a redelivery and a duplicate apart is kept.
local old = redis.call('HMGET', KEYS[1], 'token', 'source')
local token = old[1]
if not token then return 'absent' end
if tonumber(token) > tonumber(ARGV[1]) then return 'fenced' end
if old[2] ~= ARGV[2] then return 'absent' end
if tonumber(token) < tonumber(ARGV[1]) then return 'older' end
redis.call('HSET', KEYS[1], 'confirmed', ARGV[3], 'done', '1')
redis.call('HDEL', KEYS[1], 'prompt', 'ids', 'bounds', 'start', 'ending',
  'runner', 'claimed', 'failures', 'alone')
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 'ok'
"""

CANCEL = """
-- KEYS journal, early cancel; ARGV session, ttl_ms of an early cancel. Early ones are a set of
-- sessions: one that names a foreign request must not take the place of its own session's.
local found = redis.call('HMGET', KEYS[1], 'session', 'ending', 'done')
if not found[1] then
  redis.call('SADD', KEYS[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return 'early'
end
if found[1] ~= ARGV[1] or found[2] or found[3] then return 'no effect' end
redis.call('HSET', KEYS[1], 'cancel', '1')
return 'ok'
"""

STORE_SESSION = """
-- KEYS session; ARGV token, partition, version it was read at, request id, turns, messages, ids,
-- ttl_ms, offset and timestamp of the record. Tokens of two partitions cannot be compared; the
-- version tells then.
local found = redis.call('HMGET', KEYS[1], 'token', 'partition', 'version', 'last')
if found[4] == ARGV[4] then return 'stored before' end
if found[2] == ARGV[2] and tonumber(found[1]) > tonumber(ARGV[1]) then return 'fenced' end
if (found[3] or '0') ~= ARGV[3] then return 'changed' end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'partition', ARGV[2],
  'version', string.format('%.0f', ARGV[3] + 1), 'last', ARGV[4],
  'turns', ARGV[5], 'messages', ARGV[6], 'ids', ARGV[7], 'offset', ARGV[9], 'time', ARGV[10])
redis.call('PEXPIRE', KEYS[1], ARGV[8])
return 'ok'
"""

DELETE_SESSION = """
-- KEYS session; ARGV ttl_ms and, for a tombstone, partition, offset and timestamp of its record.
-- The version stays, so that a turn that is running now is not stored. A tombstone that is read
-- again must not delete the turns behind it. (A topic made anew counts from 0 again, but later.)
local found = redis.call('HMGET', KEYS[1], 'version', 'partition', 'offset', 'time')
if ARGV[2] and found[2] == ARGV[2] and found[3] and tonumber(found[3]) >= tonumber(ARGV[3])
  and tonumber(found[4]) >= tonumber(ARGV[4]) then return 'deleted before' end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', tonumber(found[1] or '0') + 1))
if ARGV[2] then
  redis.call('HSET', KEYS[1], 'partition', ARGV[2], 'offset', ARGV[3], 'time', ARGV[4],
    'token', '0')
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 'ok'
"""

IS_CANCELLED = """
-- KEYS journal; ARGV token. For a generation that waits and so does not flush.
local found = redis.call('HMGET', KEYS[1], 'token', 'cancel')
if found[1] == ARGV[1] and found[2] then return 1 end
return 0
"""

LOAD_SESSION = """
-- KEYS session; ARGV ttl_ms. Reading keeps it alive.
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HMGET', KEYS[1], 'version', 'turns', 'messages', 'ids')
"""
