-- An ordinary save, decided here as `rules.decide` does. Nothing is changed before all conditions
-- hold.
--
-- 1. Was it done before: is the checkpoint stored, or the token known?
local new_generation, tokens, generation, epoch, fence, expect, draft, entries, writes, ttl_ms, tenant, id, touch, chunks, has_naming_key, wakes =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 16)
local blob, at = ARGV[2], now()
local raw, row, damage, expired = look(true)
if damage then return { 'damaged', damage } end
local field = draft and draft[1] .. '\0' .. draft[2]

if row and field then
  local stored = redis.call('HGET', R, field)
  if stored then
    -- Damage, for the client.
    if not redis.call('ZSCORE', O, (members(draft[1], draft[2], stored))) then stored = '' end
    -- WAIT waits for the writes of this connection.
    if touch then redis.call('HSET', M, 'row', raw) end
    return { 'existing', raw, stored }
  end
end

local names = {}
for i = 1, #entries do names[i] = entries[i][1] end
-- A commit sends its own token, then those of abandoned commits: these have no effect when they
-- come after it.
if row and string.find(row.tokens, sub(tokens, 1, 16), 1, true) then
  if touch then redis.call('HSET', M, 'row', raw) end
  return { 'repeated', raw, (hmget(E, names)) }
end

-- 2. Is everything that the decision reads what was stored last? Where a value is missing, none of
--    its kind may be lost.
local stored_entries = row and hmget(E, names) or {}
if row then
  for i = 1, #names do
    if stored_entries[i] then
      if not entries[i][7] and not redis.call('ZSCORE', O, member('e', names[i], stored_entries[i])) then return { 'entry', i } end
    elseif not fence and redis.call('HLEN', E) ~= row.entries then
      return { 'damaged', 'entries of it are gone' }
    end
  end
  if #writes > 0 and redis.call('HLEN', W) ~= row.writes then return { 'damaged', 'writes of it are gone' } end
end

-- 3. Check the conditions of the commit: lease, epoch, generation, chunks, head, entries.
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
  -- The reply has what the client needs to try again without reading the thread first.
  local head = row and draft and head_of(draft[1])
  local stored = head and redis.call('HGET', R, draft[1] .. '\0' .. head)
  return { 'generation', row and row.generation or false, head or '', stored or '' }
end
-- The generation tells of deletions. It does not tell that a server came back without its last
-- commits, or that a replica without them took over: so the chunks that the save shares are looked
-- for.
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
  local stamps, count = hmget(C, fields)
  for i = 1, count do
    if not stamps[i] then return { 'generation', false, '', '' } end
  end
end
if expect then
  local head, _, position = false, nil, nil
  if row then head, _, position = head_of(expect[1]) end
  if row and not is_newest(row, position) then return { 'damaged', DISAGREE } end
  head = head or false
  if head ~= expect[2] then return { 'head', head } end
end

for i = 1, #entries do
  local _, payload, keeps, status, rank, is_next, gone, _, _, _, expected_rank, lapsed = unpack(entries[i], 1, 12)
  local stored, old_status, clock, old = stored_entries[i], nil, nil, nil
  local stored_rank = string.rep('0', 48)
  if stored then
    old_status, clock, old = status_clock(stored)
    stored_rank = sub(stored, 1, 48)
  end
  local same = stored and not gone and not keeps and not is_next and rank == stored_rank and status == old_status and ARGV[payload] == old
  if not same then
    local stale = not is_next and not gone and rank < stored_rank
    local unexpected = expected_rank and expected_rank ~= stored_rank
    local is_leased = lapsed and stored and is_timed(clock) and sub(stored, 49, 64) > hex(at)
    if stale or unexpected or is_leased then return { 'held', i, stored or false } end
  end
end

local parent = draft and draft[4] or false
if draft and draft[3] and row then
  local head, _, position = head_of(draft[1])
  if not is_newest(row, position) then return { 'damaged', DISAGREE } end
  parent = head or parent
end
local refusal, new_bucket
if not row then refusal, new_bucket = refusal_or_new_bucket(has_naming_key) end
if refusal then return refusal end

-- 4. Write. Nothing refuses from here on; only the first write can fail, on a full server, before
--    anything is changed.
local is_new, old_state = not row, row and state_of(row)
if is_new then
  redis.call('HSET', M, 'row', '')
  row = first_row(ttl_ms, at, expired, tenant .. '\0' .. id)
  row.generation = new_generation
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
  local in_namespace, in_thread = members(draft[1], draft[2], value)
  changes[in_namespace], changes[in_thread] = true, true
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
  for i = 1, #entries do present[entries[i][1]] = stored_entries[i] end
  for i = 1, #entries do
    local name, payload, keeps, status, rank, is_next, gone, lapses, clock, lease = unpack(entries[i], 1, 10)
    payload = ARGV[payload]
    kept[i] = keeps and stored_entries[i] or false
    if kept[i] then
      local old_status, _, old = status_clock(kept[i])
      payload = old
      if status == '' then status = old_status end
    end
    if lease then lapses, clock = hex(at + lease), clock == 'wall' and clock or 'redis' end
    if is_next then rank = sub(rank, 1, 16) .. hex(row.revision) .. sub(rank, 33) end
    local head, tail = rank .. lapses, struct.pack('>I4I4', #status, #clock) .. status .. clock
    local before, after = present[name], not gone and head .. sum(head .. tail .. sub(payload, -8)) .. tail .. payload
    change_entry(tenant, name, before, after)
    if after then
      redis.call('HSET', E, name, after)
    elseif before then
      redis.call('HDEL', E, name)
    end
    count_entry(row, name, (after and 1 or 0) - (before and 1 or 0))
    present[name] = after
  end
end

settle(old_state, row, tenant, id, ttl_ms, is_new and not expired, new_bucket)
if wakes then ring(tenant) end
return { 'ok', row.generation, row.revision, row.seq, row.epoch, at, parent, table.concat(accepted), kept, is_new and 1 or 0 }
