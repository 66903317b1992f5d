-- Everything that `rules.decide` reads, at one moment.
local records, namespaces, writes, checkpoints, entries = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local chunks = split(ARGV[2])
local raw, row, damage = look()
if damage then return { 'damaged', damage } end
if not row then return { 'ok', now(), false, false, {}, {}, {}, {}, {}, {}, {} } end

-- A value that is asked for and missing may be lost: then the count of its kind is wrong.
local function is_short(values, count, key, expected)
  for i = 1, count do
    if not values[i] then return redis.call('HLEN', key) ~= expected end
  end
end

local stored_records = {}
for i = 1, #records do
  local at = string.find(records[i], '\0', 1, true)
  stored_records[i] = record_at(sub(records[i], 1, at - 1), sub(records[i], at + 1))
end
if is_short(stored_records, #records, R, row.checkpoints) then return { 'damaged', 'checkpoints of it are gone' } end
local heads = {}
for i = 1, #namespaces do heads[2 * i - 1], heads[2 * i] = head_record(namespaces[i]) end
local stored_writes = hmget(W, writes)
if is_short(stored_writes, #writes, W, row.writes) then return { 'damaged', 'writes of it are gone' } end
for i = 1, #writes do stored_writes[i] = stored_writes[i] and checked(stored_writes[i], member('w', writes[i], stored_writes[i])) end
local has_writes = {}
for i = 1, #checkpoints do
  local start = 'w' .. checkpoints[i]
  has_writes[i] = #redis.call('ZRANGEBYLEX', O, '[' .. start .. '\0', '(' .. start .. '\1', 'LIMIT', 0, 1)
end
local stored_entries = hmget(E, entries)
if is_short(stored_entries, #entries, E, row.entries) then return { 'damaged', 'entries of it are gone' } end
for i = 1, #entries do stored_entries[i] = stored_entries[i] and checked(stored_entries[i], member('e', entries[i], stored_entries[i])) end
local sizes = {}
for i = 1, #chunks do sizes[i] = redis.call('HSTRLEN', C, 'd' .. chunks[i]) end
return {
  'ok', now(), raw, redis.call('HMGET', M, 'metadata', 'projection'), stored_records, heads, stored_writes, has_writes, stored_entries, sizes,
  (hmget(C, prefixed('s', chunks))),
}
