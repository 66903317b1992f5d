-- An effect that `rules.decide` made of what was gathered: done if the thread is still just that, or, with a base,
-- if nothing but ordinary saves came between, which change nothing that was looked at. All that can fail is done before
-- the first write; removals come first, also because a full server then lets the rest pass.
local tokens, expected, base, new, everything, removed, records, writes, entries, info, projection, ttl_ms, tenant, id, chunks =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 15)
local doomed = split(ARGV[2])
local raw, row = load_row()
local is_damaged = row == false
if is_damaged and not (base and everything) then return { 'damaged', raw } end
if is_known(row, tokens) then
  redis.call('HSET', M, 'row', raw) -- so that WAIT waits for what this connection wrote
  return { 'repeated', raw }
end
local at, is_new = now(), not row
local generation, revision, version, until_ = unpack(base or {}, 1, 4)
if not base then
  if (raw or '') ~= expected then return { 'moved' } end
elseif generation then
  if is_new or row.generation ~= generation or row.revision < revision then return { 'moved' } end
  if version and row.info_version ~= version then return { 'moved' } end
end

if is_new and is_elsewhere() then return { 'elsewhere' } end

-- What is to go and what is to be replaced
local olds, spent = {}, 0
for i = 1, #removed do olds[removed[i]] = redis.call('HGET', R, removed[i]) end
local sizes = {}
for i = 1, #doomed do
  local stamped = string.match(redis.call('HGET', C, 's' .. doomed[i]) or '', '^(%d+) ')
  -- one that was stored again meanwhile stays
  sizes[i] = (not base or stamped and tonumber(stamped) <= until_) and redis.call('HSTRLEN', C, 'd' .. doomed[i])
end
local formers = {}
for i = 1, #records do
  formers[i] = redis.call('HGET', R, records[i][1] .. '\0' .. records[i][2])
  if base and not formers[i] then return { 'moved' } end
end
local gone = #removed
if everything and not raw then gone = 0 end
if everything and raw then gone = math.max(redis.call('HLEN', R), (is_damaged or is_listed(row)) and 1 or 0) end

if is_new then
  row = { revision = first_revision(ttl_ms, at), epoch = 0, seq = 0, created = int(at), checkpoints = 0, writes = 0, entries = 0, stored = 0, info_version = 0, info = 0, tokens = '' }
  if is_damaged then
    row.revision = at -- more than any before
    local last = redis.call('ZREVRANGEBYLEX', O, '(b', '[a', 'LIMIT', 0, 1)[1]
    if last and #last > 16 then row.epoch, row.seq = struct.unpack('>I8I8', last, 2) end
  end
end
local was_listed = is_damaged or is_listed(row)
if base then
  row.generation, row.revision, row.updated = new[1], row.revision + 1, int(at)
  if version then row.info_version = new[7] end
  if everything then row.info_version = 0 end
else
  row.generation, row.revision, row.epoch, row.seq, row.created, row.updated, row.info_version = unpack(new, 1, 7)
end
remember(row, tokens)
if is_new and not is_damaged then
  redis.call('HSET', M, 'row', row_text(row))
  register()
  redis.call('UNLINK', R, O, C, W, E)
end

if everything then
  local all = redis.call('HKEYS', E)
  redis.call('UNLINK', R, O, C, W, E)
  for i = 1, #all do forget_entry(tenant, all[i]) end
  redis.call('HDEL', M, 'info', 'projection')
  row.checkpoints, row.writes, row.entries, row.stored, row.info = 0, 0, 0, 0, 0
end

local function forget_order(field, value)
  local at = string.find(field, '\0', 1, true)
  local namespace, name = sub(field, 1, at - 1), sub(field, at + 1)
  local one, all = members(namespace, name, sub(value, 1, 16))
  if redis.call('ZREM', O, one, all) == 2 then return end
  -- The record is damaged and does not tell its place: look for it.
  local start, tail = 'n' .. namespace .. '\0', name .. '\0' .. namespace
  local found = redis.call('ZRANGEBYLEX', O, '[' .. start, '(n' .. namespace .. '\1')
  for i = 1, #found do
    if sub(found[i], #start + 17) == name then redis.call('ZREM', O, found[i]) end
  end
  found = redis.call('ZRANGEBYLEX', O, '[a', '(b')
  for i = 1, #found do
    if sub(found[i], 18) == tail then redis.call('ZREM', O, found[i]) end
  end
end

for i = 1, #removed do
  local field = removed[i]
  local old = olds[field]
  if old then
    forget_order(field, old)
    redis.call('HDEL', R, field)
    row.checkpoints = row.checkpoints - 1
    row.stored = row.stored - body_bytes(old)
  end
  local names = redis.call('ZRANGEBYLEX', O, '[w' .. field .. '\0', '(w' .. field .. '\1')
  for j = 1, #names do
    redis.call('ZREM', O, names[j])
    row.writes = row.writes - redis.call('HDEL', W, sub(names[j], 2))
  end
end
for i = 1, #doomed do
  if sizes[i] then
    spent = spent + sizes[i]
    redis.call('HDEL', C, 'd' .. doomed[i], 's' .. doomed[i])
  end
end
row.stored = row.stored - spent

for i = 3, 3 * chunks, 3 do
  row.stored = row.stored + store_chunk(ARGV[i], int(row.revision), ARGV[i + 1], ARGV[i + 2])
end

for i = 1, #records do
  local namespace, name, value = records[i][1], records[i][2], ARGV[records[i][3]]
  local field = namespace .. '\0' .. name
  local old = not everything and not olds[field] and formers[i]
  if old then
    if sub(old, 1, 16) ~= sub(value, 1, 16) then forget_order(field, old) end
    row.stored = row.stored - body_bytes(old)
  else
    row.checkpoints = row.checkpoints + 1
  end
  redis.call('HSET', R, field, value)
  local one, all = members(namespace, name, sub(value, 1, 16))
  redis.call('ZADD', O, 0, one, 0, all)
  row.stored = row.stored + body_bytes(value)
end
for i = 1, #writes do
  if redis.call('HSET', W, writes[i][1], ARGV[writes[i][2]]) == 1 then
    redis.call('ZADD', O, 0, 'w' .. writes[i][1])
    row.writes = row.writes + 1
  end
end
for i = 1, #entries do
  local name, value = entries[i][1], entries[i][2] and ARGV[entries[i][2]]
  local old = redis.call('HGET', E, name)
  if old then forget_entry(tenant, name) end
  if value then
    redis.call('HSET', E, name, value)
    redis.call('ZADD', O, 0, 'e' .. name)
    index_entry(tenant, name, value)
  elseif old then
    redis.call('HDEL', E, name)
    redis.call('ZREM', O, 'e' .. name)
  end
  row.entries = row.entries + (value and 1 or 0) - (old and 1 or 0)
end
if info then
  redis.call('HSET', M, 'info', ARGV[info])
  if projection then redis.call('HSET', M, 'projection', projection) else redis.call('HDEL', M, 'projection') end
  row.info = 1
end

if is_listed(row) then
  redis.call('ZADD', THREADS, 0, tenant .. '\0' .. id)
elseif was_listed then
  redis.call('ZREM', THREADS, tenant .. '\0' .. id)
end
if is_listed(row) or row.entries > 0 then
  redis.call('HSET', M, 'tenant', tenant, 'id', id)
else
  redis.call('HDEL', M, 'tenant', 'id')
end
raw = row_text(row)
redis.call('HSET', M, 'row', raw)
keep_alive(ttl_ms)
return { 'ok', raw, gone, spent }
