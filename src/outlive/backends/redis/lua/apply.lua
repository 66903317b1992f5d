-- Apply an effect that `rules.decide` made of what was gathered, if the thread is still the same.
-- With a base, ordinary saves may have come between: they change nothing that was looked at.
-- Everything that can fail is done before the first write. Removals come first: then a full server
-- accepts the rest.
local tokens, expected, base, new, everything, removed, records, writes, entries, metadata, projection, ttl_ms, tenant, id, chunks, has_naming_key, wakes =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 17)
local removed_chunks = split(ARGV[2])
local is_deletion = base and everything -- also of a damaged thread
local raw, row, damage, expired
if is_deletion then
  local can_look
  can_look, raw, row, damage, expired = pcall(look)
  if not can_look then raw, row, damage = nil, nil, 'a key of it is of another type' end
else
  raw, row, damage, expired = look()
end
if damage and (damage == TORN or not is_deletion) then return { 'damaged', damage } end
if row and string.find(row.tokens, sub(tokens, 1, 16), 1, true) then
  redis.call('HSET', M, 'row', raw) -- so that WAIT waits for what this connection wrote
  return { 'repeated', raw }
end
local at, is_new = now(), not row
local generation, revision, version, chunks_until = unpack(base or {}, 1, 4)
if not base then
  if (raw or '') ~= expected then return { 'moved' } end
elseif generation then
  if is_new or row.generation ~= generation or row.revision < revision then return { 'moved' } end
  if version and row.metadata_version ~= version then return { 'moved' } end
end

local refusal, new_bucket
if is_new then refusal, new_bucket = refusal_or_new_bucket(has_naming_key) end
if refusal then return refusal end

-- Read everything that is removed or replaced.
local old_records, freed_bytes = {}, 0
for i = 1, #removed do old_records[removed[i]] = redis.call('HGET', R, removed[i]) end
local sizes = {}
for i = 1, #removed_chunks do
  local stamped = string.match(redis.call('HGET', C, 's' .. removed_chunks[i]) or '', '^(%d+) ')
  -- A chunk that was stored again meanwhile stays.
  sizes[i] = (not base or stamped and tonumber(stamped) <= chunks_until) and redis.call('HSTRLEN', C, 'd' .. removed_chunks[i])
end
local replaced = {}
for i = 1, #records do
  replaced[i] = redis.call('HGET', R, records[i][1] .. '\0' .. records[i][2])
  if base and not replaced[i] then return { 'moved' } end
end
local removed_count = #removed
if everything then
  local is_there = damage and damage ~= UNSURE or row and sub(state_of(row), 1, 1) == 'l'
  local count = redis.pcall('HLEN', R)
  removed_count = math.max(type(count) == 'number' and count or 0, is_there and 1 or 0)
end

-- Return the position of the newest checkpoint of a damaged thread, as far as anything tells. It
-- must not be used twice.
local function last_position()
  local readable = raw and parse_row(raw)
  local order = readable and struct.pack('>I8I8', readable.epoch, readable.seq) or ''
  local last = redis.call('ZREVRANGEBYLEX', O, '(b', '[a', 'LIMIT', 0, 1)[1]
  if last and #last > 16 and sub(last, 2, 17) > order then order = sub(last, 2, 17) end
  local fields = redis.call('HKEYS', R)
  for i = 1, #fields do
    local value = redis.call('HGET', R, fields[i])
    if #value > 16 and sub(value, 1, 16) > order then order = sub(value, 1, 16) end
  end
  if order == '' then return 0, 0 end
  return struct.unpack('>I8I8', order)
end

local old_state, has_position, epoch, seq = row and state_of(row), nil, nil, nil
if damage then has_position, epoch, seq = pcall(last_position) end
if is_new then
  -- The first command is one that a full server refuses, before anything is changed. A deletion
  -- frees memory first.
  if everything then redis.call('UNLINK', R, O, C, W) else redis.call('HSET', M, 'row', '') end
  row = first_row(ttl_ms, at, expired, tenant .. '\0' .. id)
end
if damage then
  row.revision = at -- higher than any before
  search_times(tenant, id)
  try('HDEL', ROSTER, 'totals') -- nothing tells what to subtract
end
if has_position then row.epoch, row.seq = epoch, seq end
if ttl_ms > 0 then row.ends = 1 end
if base then
  row.generation, row.revision, row.updated = new[1], row.revision + 1, int(at)
  if version then row.metadata_version = new[7] end
  if everything then row.metadata_version = 0 end
else
  row.generation, row.revision, row.epoch, row.seq, row.created, row.updated, row.metadata_version = unpack(new, 1, 7)
end
row.tokens = sub(tokens .. row.tokens, 1, 128)

-- A deletion is possible on a full server: its first command frees memory.
if everything then
  local all_entries = damage and {} or redis.call('HGETALL', E)
  redis.call('UNLINK', R, O, C, W, E)
  if damage then redis.call('UNLINK', M) end
  local are_left = damage
  for i = 1, #all_entries, 2 do are_left = change_entry(tenant, all_entries[i], all_entries[i + 1], false) or are_left end
  if are_left then clear_lines() end
  changes = {}
  redis.call('HDEL', M, 'metadata', 'projection')
  row.checkpoints, row.writes, row.entries, row.stored, row.metadata, row.listing = 0, 0, 0, 0, 0, 0
end

local function forget_order(field, value)
  local at = string.find(field, '\0', 1, true)
  local namespace, name = sub(field, 1, at - 1), sub(field, at + 1)
  local in_namespace, in_thread = members(namespace, name, value)
  if redis.call('ZREM', O, in_namespace, in_thread) == 2 then return end
  -- The record is damaged and does not tell its position: search for it.
  local start, tail = 'n' .. namespace .. '\0', name .. '\0' .. namespace
  local candidates = redis.call('ZRANGEBYLEX', O, '[' .. start, '(n' .. namespace .. '\1')
  for i = 1, #candidates do
    if sub(candidates[i], #start + 17, -10) == name then redis.call('ZREM', O, candidates[i]) end
  end
  candidates = redis.call('ZRANGEBYLEX', O, '[a', '(b')
  for i = 1, #candidates do
    if sub(candidates[i], 18, -10) == tail then redis.call('ZREM', O, candidates[i]) end
  end
end

for i = 1, #removed do
  local field = removed[i]
  local old = old_records[field]
  if old then
    forget_order(field, old)
    redis.call('HDEL', R, field)
    row.checkpoints = row.checkpoints - 1
    row.stored = row.stored - body_bytes(old)
  end
  local names = redis.call('ZRANGEBYLEX', O, '[w' .. field .. '\0', '(w' .. field .. '\1')
  for j = 1, #names do
    redis.call('ZREM', O, names[j])
    row.writes = row.writes - redis.call('HDEL', W, sub(names[j], 2, -10))
  end
end
for i = 1, #removed_chunks do
  if sizes[i] then
    freed_bytes = freed_bytes + sizes[i]
    redis.call('HDEL', C, 'd' .. removed_chunks[i], 's' .. removed_chunks[i])
  end
end
row.stored = row.stored - freed_bytes

row.stored = row.stored + store_chunks(chunks, int(row.revision))

for i = 1, #records do
  local namespace, name, value = records[i][1], records[i][2], ARGV[records[i][3]]
  local field = namespace .. '\0' .. name
  local old = not everything and not old_records[field] and replaced[i]
  if old then
    forget_order(field, old)
    row.stored = row.stored - body_bytes(old)
  else
    row.checkpoints = row.checkpoints + 1
  end
  redis.call('HSET', R, field, value)
  local in_namespace, in_thread = members(namespace, name, value)
  changes[in_namespace], changes[in_thread] = true, true
  row.stored = row.stored + body_bytes(value)
end
for i = 1, #writes do
  local name, value = writes[i][1], ARGV[writes[i][2]]
  local former = redis.call('HGET', W, name)
  if former then changes[member('w', name, former)] = false end
  changes[member('w', name, value)] = true
  row.writes = row.writes + redis.call('HSET', W, name, value)
end
for i = 1, #entries do
  local name, value = entries[i][1], entries[i][2] and ARGV[entries[i][2]]
  local old = redis.call('HGET', E, name)
  change_entry(tenant, name, old, value)
  if value then redis.call('HSET', E, name, value) elseif old then redis.call('HDEL', E, name) end
  count_entry(row, name, (value and 1 or 0) - (old and 1 or 0))
end
if metadata then
  redis.call('HSET', M, 'metadata', ARGV[metadata])
  if projection then redis.call('HSET', M, 'projection', projection) else redis.call('HDEL', M, 'projection') end
  row.metadata = 1
end

raw = settle(old_state, row, tenant, id, ttl_ms, is_new and not damage and not expired, new_bucket)
if wakes then ring(tenant) end
return { 'ok', raw, removed_count, freed_bytes }
