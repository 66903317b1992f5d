-- An ordinary save, decided here as `rules.decide` does: nothing is changed before everything holds.
local fresh, tokens, generation, epoch, fence, expect, draft, entries, writes, ttl_ms, tenant, id, touch, chunks, knows =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 15)
local blob, at = ARGV[2], now()
local raw, row, wrong, place = look(true)
if wrong then return { 'damaged', wrong } end
local field = draft and draft[1] .. '\0' .. draft[2]

if row and field then
  local stored = redis.call('HGET', R, field)
  if stored then
    if not redis.call('ZSCORE', O, (members(draft[1], draft[2], stored))) then stored = '' end -- the client takes it for damage
    if touch then redis.call('HSET', M, 'row', raw) end -- so that WAIT waits for what this connection wrote
    return { 'existing', raw, stored }
  end
end

local names = {}
for i = 1, #entries do names[i] = entries[i][1] end
-- A commit says its own token, then those of commits that were given up: these do nothing if they come after it.
if row and string.find(row.tokens, sub(tokens, 1, 16), 1, true) then
  if touch then redis.call('HSET', M, 'row', raw) end
  return { 'repeated', raw, (hmget(E, names)) }
end

-- What is there must be what was stored last. Where something is not there, none of its kind may be lost.
local held = row and hmget(E, names) or {}
if row then
  for i = 1, #names do
    if held[i] then
      if not entries[i][7] and not redis.call('ZSCORE', O, member('e', names[i], held[i])) then return { 'entry', i } end
    elseif not fence and redis.call('HLEN', E) ~= row.entries then
      return { 'damaged', 'entries of it are gone' }
    end
  end
  if #writes > 0 and redis.call('HLEN', W) ~= row.writes then return { 'damaged', 'writes of it are gone' } end
end

-- What must still hold
if fence then
  local owner = row and redis.call('HGET', E, fence[1])
  if owner and not redis.call('ZSCORE', O, member('e', fence[1], owner)) then return { 'lease', '' } end
  if not owner and row and redis.call('HLEN', E) ~= row.entries then return { 'damaged', 'entries of it are gone' } end
  if not owner or sub(owner, 1, 32) ~= fence[2] or status_clock(owner) ~= 'running' then
    return { 'lease', owner or false }
  end
end
if epoch and row and epoch < row.epoch then return { 'epoch', row.epoch } end
if generation and (not row or row.generation ~= generation) then
  -- with what the client needs to try again without reading the thread first
  local head = row and draft and head_of(draft[1])
  local stored = head and redis.call('HGET', R, draft[1] .. '\0' .. head)
  return { 'generation', row and row.generation or false, head or '', stored or '' }
end
-- The generation tells of deletions. A server that came back without its last commits, or a replica in its place,
-- does not tell that chunks are gone, so they are looked for.
if generation then
  local brought, fields = {}, {}
  for i = 3, 3 * chunks, 3 do brought[ARGV[i]] = true end
  local function add_missing(names)
    for _, name in ipairs(split(names)) do
      if not brought[name] then fields[#fields + 1] = 's' .. name end
    end
  end
  if draft then add_missing(sub(blob, 13, 12 + struct.unpack('>I4', blob))) end
  for i = 1, #writes do
    local rest = ARGV[writes[i][4]]
    add_missing(sub(rest, 5, 4 + struct.unpack('>I4', rest)))
  end
  local found, count = hmget(C, fields)
  for i = 1, count do
    if not found[i] then return { 'generation', false, '', '' } end
  end
end
if expect then
  local head, _, place = false, nil, nil
  if row then head, _, place = head_of(expect[1]) end
  if row and not is_newest(row, place) then return { 'damaged', DISAGREE } end
  head = head or false
  if head ~= expect[2] then return { 'head', head } end
end

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

local parent = draft and draft[4] or false
if draft and draft[3] and row then
  local head, _, place = head_of(draft[1])
  if not is_newest(row, place) then return { 'damaged', DISAGREE } end
  parent = head or parent
end
local refusal, new_bucket
if not row then refusal, new_bucket = refusal_or_new_bucket(knows) end
if refusal then return refusal end

-- From here on nothing refuses. The first write is one that a full server refuses, before anything was changed.
local is_new, was = not row, row and standing(row)
if is_new then
  redis.call('HSET', M, 'row', '')
  row = first_row(ttl_ms, at, place, tenant .. '\0' .. id)
  row.generation = fresh
end
if ttl_ms > 0 then row.ends = 1 end
row.revision = row.revision + 1
row.epoch = math.max(row.epoch, epoch or 0)
row.updated = int(at)
row.tokens = sub(tokens .. row.tokens, 1, 128)
local revision = int(row.revision)

row.stored = row.stored + store_chunks(chunks, revision)

if draft then
  row.seq = row.seq + 1
  local order = struct.pack('>I8I8', row.epoch, row.seq)
  local created = draft[5] > 0 and draft[5] or at
  local head = order .. struct.pack('>I8I4', created, parent and #parent or NONE)
  local text = parent or ''
  local value = head .. sum(head .. text .. sub(blob, -8)) .. text .. blob
  redis.call('HSET', R, field, value)
  local one, all = members(draft[1], draft[2], value)
  changes[one], changes[all] = true, true
  row.checkpoints = row.checkpoints + 1
  row.stored = row.stored + draft[6]
end

local accepted = {}
for i = 1, #writes do
  local name, is_control, rank, rest = unpack(writes[i], 1, 4)
  rest = ARGV[rest]
  if is_control then rank = hex(row.epoch) .. hex(0) .. hex(row.revision) end
  local value = rank .. sum(rank .. sub(rest, -8)) .. rest
  local former = is_control and redis.call('HGET', W, name)
  local added = redis.call(is_control and 'HSET' or 'HSETNX', W, name, value)
  if former then changes[member('w', name, former)] = false end
  if is_control or added == 1 then changes[member('w', name, value)] = true end
  row.writes = row.writes + added
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
    local head, tail = rank .. lapses, struct.pack('>I4I4', #status, #clock) .. status .. clock
    local before, after = present[name], not gone and head .. sum(head .. tail .. sub(payload, -8)) .. tail .. payload
    change_entry(tenant, name, before, after)
    if after then
      redis.call('HSET', E, name, after)
    elseif before then
      redis.call('HDEL', E, name)
    end
    row.entries = row.entries + (after and 1 or 0) - (before and 1 or 0)
    present[name] = after
  end
end

settle(was, row, tenant, id, ttl_ms, is_new and not place, new_bucket)
return { 'ok', row.generation, row.revision, row.seq, row.epoch, at, parent, table.concat(accepted), kept, is_new and 1 or 0 }
