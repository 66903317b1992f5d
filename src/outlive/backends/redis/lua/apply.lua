-- An effect that `rules.decide` made of what was gathered: done if the thread is still just that, or, with a base,
-- if nothing but ordinary saves came between, which change nothing that was looked at. All that can fail is done before
-- the first write; removals come first, also because a full server then lets the rest pass.
local tokens, expected, base, new, everything, removed, records, writes, entries, info, projection, ttl_ms, tenant, id, chunks, knows =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 16)
local doomed = split(ARGV[2])
local is_deletion = base and everything -- of which a damaged thread is no obstacle
local raw, row, wrong, place
if is_deletion then
  local can_look
  can_look, raw, row, wrong, place = pcall(look)
  if not can_look then raw, row, wrong = nil, nil, 'a key of it is of another type' end
else
  raw, row, wrong, place = look()
end
if wrong and (wrong == TORN or not is_deletion) then return { 'damaged', wrong } end
if row and string.find(row.tokens, sub(tokens, 1, 16), 1, true) then
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

local refusal, new_bucket
if is_new then refusal, new_bucket = refusal_or_new_bucket(knows) end
if refusal then return refusal end

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
if everything then
  local is_there = wrong and wrong ~= UNSURE or row and sub(standing(row), 1, 1) == 'l'
  local count = redis.pcall('HLEN', R)
  gone = math.max(type(count) == 'number' and count or 0, is_there and 1 or 0)
end

-- The place of the newest checkpoint of a damaged thread, as far as anything tells: it is not given again.
local function last_place()
  local told = raw and parse_row(raw)
  local order = told and struct.pack('>I8I8', told.epoch, told.seq) or ''
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

local was, knows_place, epoch, seq = row and standing(row), nil, nil, nil
if wrong then knows_place, epoch, seq = pcall(last_place) end
if is_new then
  -- The first command is one that a full server refuses, but for a deletion: that begins with one that frees memory.
  if everything then redis.call('UNLINK', R, O, C, W) else redis.call('HSET', M, 'row', '') end
  row = first_row(ttl_ms, at, place, tenant .. '\0' .. id)
end
if wrong then row.revision = at end -- more than any before
if knows_place then row.epoch, row.seq = epoch, seq end
if ttl_ms > 0 then row.ends = 1 end
if base then
  row.generation, row.revision, row.updated = new[1], row.revision + 1, int(at)
  if version then row.info_version = new[7] end
  if everything then row.info_version = 0 end
else
  row.generation, row.revision, row.epoch, row.seq, row.created, row.updated, row.info_version = unpack(new, 1, 7)
end
row.tokens = sub(tokens .. row.tokens, 1, 128)

-- A deletion is possible on a server that is full: the first command that it runs frees memory.
if everything then
  local all = wrong and {} or redis.call('HGETALL', E)
  redis.call('UNLINK', R, O, C, W, E)
  if wrong then redis.call('UNLINK', M) end
  local are_left = wrong
  for i = 1, #all, 2 do are_left = change_entry(tenant, all[i], all[i + 1], false) or are_left end
  if are_left then clear_lines() end
  changes = {}
  redis.call('HDEL', M, 'info', 'projection')
  row.checkpoints, row.writes, row.entries, row.stored, row.info = 0, 0, 0, 0, 0
end

local function forget_order(field, value)
  local at = string.find(field, '\0', 1, true)
  local namespace, name = sub(field, 1, at - 1), sub(field, at + 1)
  local one, all = members(namespace, name, value)
  if redis.call('ZREM', O, one, all) == 2 then return end
  -- The record is damaged and does not tell its place: look for it.
  local start, tail = 'n' .. namespace .. '\0', name .. '\0' .. namespace
  local found = redis.call('ZRANGEBYLEX', O, '[' .. start, '(n' .. namespace .. '\1')
  for i = 1, #found do
    if sub(found[i], #start + 17, -10) == name then redis.call('ZREM', O, found[i]) end
  end
  found = redis.call('ZRANGEBYLEX', O, '[a', '(b')
  for i = 1, #found do
    if sub(found[i], 18, -10) == tail then redis.call('ZREM', O, found[i]) end
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
    row.writes = row.writes - redis.call('HDEL', W, sub(names[j], 2, -10))
  end
end
for i = 1, #doomed do
  if sizes[i] then
    spent = spent + sizes[i]
    redis.call('HDEL', C, 'd' .. doomed[i], 's' .. doomed[i])
  end
end
row.stored = row.stored - spent

row.stored = row.stored + store_chunks(chunks, int(row.revision))

for i = 1, #records do
  local namespace, name, value = records[i][1], records[i][2], ARGV[records[i][3]]
  local field = namespace .. '\0' .. name
  local old = not everything and not olds[field] and formers[i]
  if old then
    forget_order(field, old)
    row.stored = row.stored - body_bytes(old)
  else
    row.checkpoints = row.checkpoints + 1
  end
  redis.call('HSET', R, field, value)
  local one, all = members(namespace, name, value)
  changes[one], changes[all] = true, true
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
  row.entries = row.entries + (value and 1 or 0) - (old and 1 or 0)
end
if info then
  redis.call('HSET', M, 'info', ARGV[info])
  if projection then redis.call('HSET', M, 'projection', projection) else redis.call('HDEL', M, 'projection') end
  row.info = 1
end

raw = settle(was, row, tenant, id, ttl_ms, is_new and not wrong and not place, new_bucket)
return { 'ok', raw, gone, spent }
