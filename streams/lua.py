"""The Redis scripts: each is one atomic step of the protocol (docs/delivery.md).

A journal is a hash: `token` `attempt` `source` `session` and, once the generation has started, `start`
(JSON), `prompt` and `ids` (little-endian uint32 each), `bounds` (uint32: tokens at the end of each
chunk), `confirmed` (events acknowledged by Kafka), `ending` (JSON), `cancel`; at the end `done`.
Tokens are milliseconds of this century: below 2^53, so Lua's numbers hold them exactly.
"""

OWN = """
-- KEYS fence; ARGV clock in ms. own: a token larger than any before, whatever the clocks say.
local token = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
redis.call('SET', KEYS[1], string.format('%.0f', token))
return token
"""

CLAIM = """
-- KEYS journal, early cancel; ARGV token, source, session, ttl_ms, may create ('1'), default id ('1')
local found = redis.call('HMGET', KEYS[1], 'token', 'source')
if found[1] and found[2] ~= ARGV[2] and ARGV[6] ~= '1' then return {'duplicate'} end
local recreated = found[1] and found[2] ~= ARGV[2]
if found[1] and not recreated then
  if tonumber(found[1]) > tonumber(ARGV[1]) then return {'fenced'} end
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
else
  if ARGV[5] ~= '1' then return {'absent'} end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'attempt', ARGV[1], 'source', ARGV[2], 'session', ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[3] then
  redis.call('HSET', KEYS[1], 'cancel', '1')
  redis.call('DEL', KEYS[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if found[1] and not recreated then return {'resumed', redis.call('HGETALL', KEYS[1])} end
return {'created', redis.call('HGETALL', KEYS[1])}
"""

FLUSH = """
-- KEYS journal; ARGV token, ids kept, new ids, bounds kept, new bounds, confirmed, start, prompt,
-- ending, ttl_ms. Appends what this owner made since its last flush; what it repeats is the same.
local token = redis.call('HGET', KEYS[1], 'token')
if not token then return 'absent' end
if tonumber(token) > tonumber(ARGV[1]) then return 'fenced' end
local old = redis.call('HMGET', KEYS[1], 'ids', 'bounds', 'cancel')
local ids = string.sub(old[1] or '', 1, ARGV[2] * 4) .. ARGV[3]
local bounds = string.sub(old[2] or '', 1, ARGV[4] * 4) .. ARGV[5]
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'ids', ids, 'bounds', bounds, 'confirmed', ARGV[6])
if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'start', ARGV[7], 'prompt', ARGV[8]) end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'ending', ARGV[9]) end
redis.call('PEXPIRE', KEYS[1], ARGV[10])
if old[3] then return 'cancelled' end
return 'ok'
"""

ADOPT = """
-- KEYS journal; ARGV token, attempt, source, session, ids, bounds, confirmed, start, prompt, ending,
-- ttl_ms, may create ('1'). Writes the whole journal where there is none, or an older owner's.
local token = redis.call('HGET', KEYS[1], 'token')
if not token and ARGV[12] ~= '1' then return 'absent' end
if token and tonumber(token) > tonumber(ARGV[1]) then return 'fenced' end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'attempt', ARGV[2], 'source', ARGV[3], 'session', ARGV[4],
  'ids', ARGV[5], 'bounds', ARGV[6], 'confirmed', ARGV[7])
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'start', ARGV[8], 'prompt', ARGV[9]) end
if ARGV[10] ~= '' then redis.call('HSET', KEYS[1], 'ending', ARGV[10]) end
redis.call('PEXPIRE', KEYS[1], ARGV[11])
return 'ok'
"""

CONFIRM = """
-- KEYS journal; ARGV token, confirmed, ttl_ms. confirm: all is published; is the journal still mine?
-- Then only what tells a redelivery and a duplicate apart is kept.
local token = redis.call('HGET', KEYS[1], 'token')
if not token then return 'absent' end
if tonumber(token) > tonumber(ARGV[1]) then return 'fenced' end
if tonumber(token) < tonumber(ARGV[1]) then return 'older' end
redis.call('HSET', KEYS[1], 'confirmed', ARGV[2], 'done', '1')
redis.call('HDEL', KEYS[1], 'prompt', 'ids', 'bounds', 'start', 'ending')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'ok'
"""

CANCEL = """
-- KEYS journal, early cancel; ARGV session, ttl_ms of an early cancel.
local found = redis.call('HMGET', KEYS[1], 'session', 'ending', 'done')
if not found[1] then
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  return 'early'
end
if found[1] ~= ARGV[1] or found[2] or found[3] then return 'no effect' end
redis.call('HSET', KEYS[1], 'cancel', '1')
return 'ok'
"""

STORE_SESSION = """
-- KEYS session; ARGV token, version it was read at, request id, turns, messages, ids, ttl_ms.
local found = redis.call('HMGET', KEYS[1], 'token', 'version', 'last')
if found[3] == ARGV[3] then return 'stored before' end
if found[1] and tonumber(found[1]) > tonumber(ARGV[1]) then return 'fenced' end
if (found[2] or '0') ~= ARGV[2] then return 'changed' end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'version', string.format('%.0f', ARGV[2] + 1), 'last', ARGV[3],
  'turns', ARGV[4], 'messages', ARGV[5], 'ids', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
return 'ok'
"""

DELETE_SESSION = """
-- KEYS session; ARGV ttl_ms. The version stays, so that a turn that is running now is not stored.
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return version
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
