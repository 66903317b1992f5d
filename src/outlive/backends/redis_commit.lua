-- An ordinary save, decided here as `rules.decide` does: nothing is changed before everything holds.
local fresh, tokens, generation, epoch, fence, expect, draft, entries, writes, ttl_ms, tenant, id, touch, chunks =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 14)
local blob, at = ARGV[2], now()
local raw, row = load_row()
if row == false then return { 'damaged', raw } end
local field = draft and draft[1] .. '\0' .. draft[2]

if row and field then
  local stored = redis.call('HGET', R, field)
  if stored then
    if touch then redis.call('HSET', M, 'row', raw) end -- so that WAIT waits for what this connection wrote
    return { 'existing', raw, stored }
  end
end

local names = {}
for i = 1, #entries do names[i] = entries[i][1] end
if is_known(row, tokens) then
  if touch then redis.call('HSET', M, 'row', raw) end
  return { 'repeated', raw, (hmget(E, names)) }
end

-- What must still hold
if fence then
  local held = row and redis.call('HGET', E, fence[1])
  if not held or sub(held, 1, 32) ~= fence[2] or status_clock(held) ~= 'running' then
    return { 'lease', held or false }
  end
end
if epoch and row and epoch < row.epoch then return { 'epoch', row.epoch } end
if generation and (not row or row.generation ~= generation) then
  -- with what the client needs to try again without reading the thread first
  local head = row and draft and head_of(draft[1])
  local stored = head and redis.call('HGET', R, draft[1] .. '\0' .. head)
  return { 'generation', row and row.generation or false, stored and (names_and_run(stored)) or '' }
end
-- The generation tells of deletions. A server that came back without its last commits, or a replica in its place,
-- does not tell that chunks are gone, so they are looked for.
if generation then
  local brought, fields = {}, {}
  for i = 3, 3 * chunks, 3 do brought[ARGV[i]] = true end
  local function look(names)
    for _, name in ipairs(split(names)) do
      if not brought[name] then fields[#fields + 1] = 's' .. name end
    end
  end
  if draft then look(sub(blob, 13, 12 + struct.unpack('>I4', blob))) end
  for i = 1, #writes do
    local rest = ARGV[writes[i][4]]
    look(sub(rest, 5, 4 + struct.unpack('>I4', rest)))
  end
  local found, count = hmget(C, fields)
  for i = 1, count do
    if not found[i] then return { 'generation', false, '' } end
  end
end
if expect then
  local head = row and head_of(expect[1]) or false
  if head ~= expect[2] then return { 'head', head } end
end

local held = row and hmget(E, names) or {}
for i = 1, #entries do
  local _, payload, keeps, status, rank, is_next, gone, _, _, _, wanted, lapsed = unpack(entries[i], 1, 12)
  local stored, had, clock, old = held[i], nil, nil, nil
  local stored_rank = string.rep('0', 48)
  if stored then
    had, clock, old = status_clock(stored)
    stored_rank = sub(stored, 1, 48)
  end
  local same = stored and not gone and not keeps and not is_next and rank == stored_rank and status == had and ARGV[payload] == old
  if not same then
    local stale = not is_next and not gone and rank < stored_rank
    local unexpected = wanted and wanted ~= stored_rank
    local is_held = lapsed and stored and clock == 'redis' and sub(stored, 49, 64) > hex(at)
    if stale or unexpected or is_held then return { 'held', i, stored or false } end
  end
end

if not row and is_elsewhere() then return { 'elsewhere' } end

-- From here on nothing refuses. The first write is one that a full server refuses, before anything was changed.
local parent = draft and draft[3] and row and head_of(draft[1]) or draft and draft[4] or false
local is_new = not row
if is_new then
  row = {
    generation = fresh, revision = first_revision(ttl_ms, at), epoch = 0, seq = 0, created = int(at), updated = int(at), checkpoints = 0, writes = 0,
    entries = 0, stored = 0, info_version = 0, info = 0, tokens = '',
  }
  redis.call('HSET', M, 'row', row_text(row))
  register()
  redis.call('UNLINK', R, O, C, W, E) -- what an eviction may have left of a former thread
end
local was_listed = is_listed(row)
local had_entries = row.entries > 0
row.revision = row.revision + 1
row.epoch = math.max(row.epoch, epoch or 0)
row.updated = int(at)
remember(row, tokens)
local revision = int(row.revision)

for i = 3, 3 * chunks, 3 do
  row.stored = row.stored + store_chunk(ARGV[i], revision, ARGV[i + 1], ARGV[i + 2])
end

if draft then
  row.seq = row.seq + 1
  local order = struct.pack('>I8I8', row.epoch, row.seq)
  local created = draft[5] > 0 and draft[5] or at
  local head = order .. struct.pack('>I8I4', created, parent and #parent or NONE)
  local text = parent or ''
  redis.call('HSET', R, field, head .. sum(head .. text .. sub(blob, -8)) .. text .. blob)
  local one, all = members(draft[1], draft[2], order)
  redis.call('ZADD', O, 0, one, 0, all)
  row.checkpoints = row.checkpoints + 1
  row.stored = row.stored + draft[6]
end

local accepted = {}
for i = 1, #writes do
  local name, is_control, rank, rest = unpack(writes[i], 1, 4)
  rest = ARGV[rest]
  if is_control then rank = hex(row.epoch) .. hex(0) .. hex(row.revision) end
  local value = rank .. sum(rank .. sub(rest, -8)) .. rest
  local added = redis.call(is_control and 'HSET' or 'HSETNX', W, name, value)
  if added == 1 then
    redis.call('ZADD', O, 0, 'w' .. name)
    row.writes = row.writes + 1
  end
  accepted[i] = (is_control or added == 1) and '1' or '0'
end

local kept = {}
if #entries > 0 then
  local present = {}
  for i = 1, #entries do present[entries[i][1]] = held[i] end
  for i = 1, #entries do
    local name, payload, keeps, status, rank, is_next, gone, lapses, clock, lease = unpack(entries[i], 1, 10)
    payload = ARGV[payload]
    kept[i] = keeps and held[i] or false
    if kept[i] then
      local had, _, old = status_clock(kept[i])
      payload = old
      if status == '' then status = had end
    end
    if lease then lapses, clock = hex(at + lease), 'redis' end
    if is_next then rank = sub(rank, 1, 16) .. hex(row.revision) .. sub(rank, 33) end
    local before, after = present[name], not gone and entry_value(rank, lapses, status, clock, payload)
    if before then forget_entry(tenant, name) end
    if after then
      redis.call('HSET', E, name, after)
      index_entry(tenant, name, after)
      if not before then
        redis.call('ZADD', O, 0, 'e' .. name)
        row.entries = row.entries + 1
      end
    elseif before then
      redis.call('HDEL', E, name)
      redis.call('ZREM', O, 'e' .. name)
      row.entries = row.entries - 1
    end
    present[name] = after
  end
end

if not was_listed then
  if is_listed(row) then redis.call('ZADD', THREADS, 0, tenant .. '\0' .. id) end
  if not had_entries then redis.call('HSET', M, 'tenant', tenant, 'id', id) end
end
redis.call('HSET', M, 'row', row_text(row))
keep_alive(ttl_ms)
return { 'ok', row.generation, row.revision, row.seq, row.epoch, at, parent, table.concat(accepted), kept, is_new and 1 or 0 }
