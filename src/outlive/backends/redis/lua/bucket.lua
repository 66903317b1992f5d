-- The indexes of a bucket. Every change of a line is counted, so that the roster knows how many
-- there are. A script that has begun to write must not fail: when an index or the roster has
-- another type, it continues, and a listing finds the damage.
local function try(...)
  local reply = redis.pcall(...)
  return type(reply) == 'number' and reply or 0
end

-- Return the lines of an entry in the index. By key: 'k' tenant, kind, key, digest; end and clock
-- of the lease, status. With a status also one by status: 's' tenant, kind, status, key, digest,
-- end, clock. (Few runs are running among many that ended.)
local function lines(tenant, field, value)
  local status, clock = status_clock(value)
  local ending = sub(value, 49, 64) .. (is_timed(clock) and '1' or '0')
  local line = 'k' .. tenant .. '\0' .. field .. '\0' .. DIGEST .. ending .. status
  if status == '' then return line, line end
  local at = string.find(field, '\0', 1, true) or #field -- a damaged field has no NUL
  local by = 's' .. tenant .. '\0' .. sub(field, 1, at) .. status .. '\0' .. sub(field, at + 1) .. '\0' .. DIGEST
  return line, by .. ending
end

-- Remove all lines of this thread, whatever they say. The digest follows the last NUL of each.
local function clear_lines()
  local all_lines, gone = redis.pcall('ZRANGE', ENTRIES, 0, -1), {}
  local own = '%z' .. DIGEST .. '[^%z]*$'
  for i = 1, #all_lines do
    if string.find(all_lines[i], own) then gone[#gone + 1] = all_lines[i] end
  end
  try('HINCRBY', ROSTER, 'entries', -in_pages('ZREM', ENTRIES, gone))
end

-- Add, replace or remove an entry in the order and in the index: `before` and `after` are its
-- values, or false. Tell whether the lines of a damaged entry were left: the next listing that
-- meets them removes them.
local function change_entry(tenant, field, before, after)
  local old, new, left, change = {}, {}, false, 0
  if before then
    changes[member('e', field, before)] = false
    local is_whole, by_key, by_status = pcall(lines, tenant, field, before)
    if is_whole then old = { by_key, by_status } else left = true end
  end
  if after then
    changes[member('e', field, after)] = true
    new = { lines(tenant, field, after) }
  end
  if old[1] == new[1] then return left end
  if old[1] then change = -try('ZREM', ENTRIES, old[1], old[2]) end
  if new[1] then change = change + try('ZADD', ENTRIES, 0, new[1], 0, new[2]) end
  if change ~= 0 then try('HINCRBY', ROSTER, 'entries', change) end
  return left
end

-- An expired thread leaves its lines. A listing of either index clears them there; the last one
-- clears the roster.
local function clear_expired(expired, letter)
  local rest = string.gsub(expired, letter, '')
  if string.find(rest, '%a') then try('HSET', ROSTER, DIGEST, rest) else try('HDEL', ROSTER, DIGEST) end
end

-- Count threads that are listed, or no longer. A roster that lost its count gets none here: the new
-- count would agree with an index that lost its lines too. Without a count, the next listing
-- rebuilds both.
local function count_listed(change)
  if try('HEXISTS', ROSTER, 'threads') == 1 then try('HINCRBY', ROSTER, 'threads', change) end
end

-- The index by time has one line for each listed thread: tenant, NUL, what is left to the end of time
-- in hex, id. On a single server the identity counts the lines, in a Cluster the roster does.
local END = 9007199254740992
local function time_line(tenant, id, updated) return tenant .. '\0' .. format('%016x', END - updated) .. id end

local function count_times(change)
  local key = IDENTITY or ROSTER
  if change ~= 0 and try('HEXISTS', key, 'listed') == 1 then try('HINCRBY', key, 'listed', change) end
end

local function drop_time(tenant, id, updated) count_times(-try('ZREM', RECENT, time_line(tenant, id, updated))) end

-- Remove the lines of a thread of which nothing tells the time of its last change.
local function search_times(tenant, id)
  local all_lines, gone = redis.pcall('ZRANGEBYLEX', RECENT, '[' .. tenant .. '\0', '(' .. tenant .. '\1'), {}
  for i = 1, #all_lines do
    if sub(all_lines[i], #tenant + 18) == id then gone[#gone + 1] = all_lines[i] end
  end
  count_times(-in_pages('ZREM', RECENT, gone))
end

-- Remove the lines that an expired thread has left; `expired` is what the roster has of it.
local function drop_lines(line, expired)
  local at, updated = string.find(line, '\0', 1, true), string.match(expired, '@(%d+)')
  if updated then drop_time(sub(line, 1, at - 1), sub(line, at + 1), updated) end
  count_listed(-try('ZREM', THREADS, line))
end

-- The roster has the totals of each tenant: 't', 'c' or 'b', NUL, tenant.
local function add_total(name, tenant, change)
  if change ~= 0 then try('HINCRBY', ROSTER, name .. '\0' .. tenant, int(change)) end
end

-- Make the index by time and the totals agree with a row.
local function note_change(was_listed, is_listed, row, tenant, id)
  local gone, added = 0, 0
  if was_listed then gone = try('ZREM', RECENT, time_line(tenant, id, row.last_updated)) end
  if is_listed then added = try('ZADD', RECENT, 0, time_line(tenant, id, row.updated)) end
  count_times(added - gone)
  -- A thread that may expire is in no total. It may have got its TTL now, or be deleted with one.
  local was_counted, is_counted = was_listed and row.last_ends == 0, is_listed and row.ends == 0
  add_total('t', tenant, (is_counted and 1 or 0) - (was_counted and 1 or 0))
  add_total('c', tenant, (is_counted and row.checkpoints or 0) - (was_counted and row.last_checkpoints or 0))
  add_total('b', tenant, (is_counted and row.stored or 0) - (was_counted and row.last_stored or 0))
end

-- Begin a thread. The lines of an expired thread with this name are removed first. An expired
-- thread leaves no counter: in a store with a TTL, revisions, and so fences, start with the time,
-- which is higher.
local function first_row(ttl_ms, at, expired, line)
  if expired and string.find(expired, 'e') then clear_lines() end
  if expired and string.find(expired, 'l') then drop_lines(line, expired) end
  return {
    generation = '0', revision = ttl_ms > 0 and at or 0, epoch = 0, seq = 0, created = int(at), updated = int(at), checkpoints = 0,
    writes = 0, entries = 0, stored = 0, metadata_version = 0, metadata = 0, ends = 0, listing = 0, tokens = '',
  }
end

-- A thread begins only in the store that its writer knows, whose naming key is the last argument.
-- Return why it cannot begin, or nil and the bucket if the identity does not have it yet. The
-- client restores a lost identity, with all buckets: with this bucket alone it would hide the
-- others. (In a Cluster the identity is on another node, and the client checks it.)
local function refusal_or_new_bucket(has_naming_key)
  if not has_naming_key or not IDENTITY then return nil end
  local bucket = string.match(M, '{(%d+)}')
  local key, noted = unpack(redis.call('HMGET', IDENTITY, 'key', bucket), 1, 2)
  if not key then return { 'damaged', TORN } end
  if key ~= ARGV[#ARGV] then return { 'replaced' } end
  return nil, not noted and bucket
end

-- Write the row, and make the order, the indexes of threads and the roster agree with it. Only this
-- function does that, for every commit. `old_state` is the state of the thread before (nil:
-- unknown, or no thread). `is_first`: nothing is left of a thread with this name, so a roster
-- without a count is that of a new bucket.
local function settle(old_state, row, tenant, id, ttl_ms, is_first, new_bucket)
  row.checkpoints, row.stored = math.max(0, row.checkpoints), math.max(0, row.stored)
  local state = state_of(row)
  -- An empty thread that begins again has nothing left that its former TTL was for.
  if old_state == '' and state ~= '' and ttl_ms == 0 and row.ends == 1 then
    row.ends = 0
    redis.call('PERSIST', M)
  end
  local raw = row_text(row)
  local is_listed, is_bare = sub(state, 1, 1) == 'l', state == ''
  -- A new bucket: the counts mark a roster that is complete, 'totals' that its totals are.
  if is_first and try('HEXISTS', ROSTER, 'threads') == 0 then
    try('HSET', ROSTER, 'threads', 0, 'totals', 1)
    if not IDENTITY then try('HSET', ROSTER, 'listed', 0) end
  end
  note_change(old_state and sub(old_state, 1, 1) == 'l', is_listed, row, tenant, id)
  if old_state == state and row.ends == 0 then -- the usual case
    redis.call('HSET', M, 'row', raw)
    write_order(row)
    return raw
  end
  if is_bare then
    redis.call('HSET', M, 'row', raw)
    redis.call('HDEL', M, 'tenant', 'id')
  else
    redis.call('HSET', M, 'row', raw, 'tenant', tenant, 'id', id)
  end
  write_order(row)
  if not old_state or (sub(old_state, 1, 1) == 'l') ~= is_listed then
    local line = tenant .. '\0' .. id
    local change = is_listed and try('ZADD', THREADS, 0, line) or -try('ZREM', THREADS, line)
    count_listed(change)
  end
  local ends = keep_alive(row, ttl_ms)
  if is_bare and row.ends == 1 then
    try('HDEL', ROSTER, DIGEST) -- an empty thread leaves nothing when its TTL ends
  else
    enroll(row, state, ends)
  end
  if new_bucket then
    try('HSET', IDENTITY, new_bucket, '1')
    try('HINCRBY', IDENTITY, 'buckets', 1)
  end
  return raw
end

-- What a listing shows of a thread. `member` is its line in the index of threads, `time` the one by
-- which it was found in the index by time; false: none. A thread that has changed since is not shown.
-- The lines that an expired thread leaves are removed here.
local function summarize(with_head, member, time)
  local raw, row, damage, expired = look()
  if not row then
    -- A line that nothing else knows of.
    if member and not damage and not expired then damage = TORN end
    if member and expired then
      drop_lines(member, expired)
      clear_expired(expired, 'l')
    end
    return { damage and '!' .. damage or false }
  end
  local at = time and string.find(member, '\0', 1, true)
  if time and time ~= time_line(sub(member, 1, at - 1), sub(member, at + 1), row.updated) then
    -- If the line is still there, it is wrong.
    return { redis.call('ZSCORE', RECENT, time) and '!' .. TORN or false }
  end
  local metadata = row.metadata > 0 and redis.call('HMGET', M, 'metadata', 'projection') or {}
  if not with_head then return { raw, metadata[1] or false, metadata[2] or false } end
  local head, value = head_record('')
  local count = redis.call('HLEN', R)
  return { raw, metadata[1] or false, metadata[2] or false, head, value, count, count ~= row.checkpoints and redis.call('PTTL', M) }
end
