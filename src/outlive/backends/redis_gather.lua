-- What `rules.decide` looks at, at one moment.
local records, namespaces, writes, pairs_, entries = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local chunks = split(ARGV[2])
local raw, row = load_row()
if row == false then return { 'damaged', raw } end
if not row then return { 'ok', now(), false, false, {}, {}, {}, {}, {}, {}, {} } end
local heads = {}
for i = 1, #namespaces do
  local id = head_of(namespaces[i])
  heads[2 * i - 1] = id or false
  heads[2 * i] = id and redis.call('HGET', R, namespaces[i] .. '\0' .. id) or false
end
local has = {}
for i = 1, #pairs_ do
  local start = 'w' .. pairs_[i]
  has[i] = #redis.call('ZRANGEBYLEX', O, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)
end
local sizes = {}
for i = 1, #chunks do sizes[i] = redis.call('HSTRLEN', C, 'd' .. chunks[i]) end
return {
  'ok', now(), raw, redis.call('HMGET', M, 'info', 'projection'), (hmget(R, records)), heads, (hmget(W, writes)), has, (hmget(E, entries)),
  sizes, (hmget(C, prefixed('s', chunks))),
}
