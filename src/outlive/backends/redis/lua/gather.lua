-- What `rules.decide` looks at, at one moment.
local records, namespaces, writes, pairs_, entries = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local chunks = split(ARGV[2])
local raw, row, wrong = look()
if wrong then return { 'damaged', wrong } end
if not row then return { 'ok', now(), false, false, {}, {}, {}, {}, {}, {}, {} } end

-- What is asked for and is not there may be lost.
local function is_short(values, count, key, said)
  for i = 1, count do
    if not values[i] then return redis.call('HLEN', key) ~= said end
  end
end

local stored = {}
for i = 1, #records do
  local at = string.find(records[i], '\0', 1, true)
  stored[i] = record_at(sub(records[i], 1, at - 1), sub(records[i], at + 1))
end
if is_short(stored, #records, R, row.checkpoints) then return { 'damaged', 'checkpoints of it are gone' } end
local heads = {}
for i = 1, #namespaces do heads[2 * i - 1], heads[2 * i] = head_record(namespaces[i]) end
local written = hmget(W, writes)
if is_short(written, #writes, W, row.writes) then return { 'damaged', 'writes of it are gone' } end
for i = 1, #writes do written[i] = written[i] and vouched(written[i], member('w', writes[i], written[i])) end
local has = {}
for i = 1, #pairs_ do
  local start = 'w' .. pairs_[i]
  has[i] = #redis.call('ZRANGEBYLEX', O, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)
end
local held = hmget(E, entries)
if is_short(held, #entries, E, row.entries) then return { 'damaged', 'entries of it are gone' } end
for i = 1, #entries do held[i] = held[i] and vouched(held[i], member('e', entries[i], held[i])) end
local sizes = {}
for i = 1, #chunks do sizes[i] = redis.call('HSTRLEN', C, 'd' .. chunks[i]) end
return {
  'ok', now(), raw, redis.call('HMGET', M, 'info', 'projection'), stored, heads, written, has, held, sizes,
  (hmget(C, prefixed('s', chunks))),
}
