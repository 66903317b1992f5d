-- Everything of a thread but the bytes of its chunks.
local raw, row = load_row()
return {
  raw or false, redis.call('HGETALL', R), redis.call('ZRANGE', O, 0, -1), redis.call('HGETALL', W), redis.call('HGETALL', E),
  redis.call('HKEYS', C), redis.call('HMGET', M, 'tenant', 'id', 'info', 'projection'), redis.call('PTTL', M),
}
