-- What a listing shows of a thread. One that a TTL has taken leaves its line in the index: it is cleared here.
local with_head, member = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local raw, row = load_row()
if not raw and member then redis.call('ZREM', THREADS, member) end
if not row then return { raw or false } end
local head = with_head and head_of('') or false
return {
  raw, redis.call('HGET', M, 'info'), redis.call('HGET', M, 'projection'), head, head and redis.call('HGET', R, '\0' .. head),
  redis.call('HLEN', R), redis.call('PTTL', M),
}
