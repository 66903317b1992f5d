-- The indexes of a bucket. Every change of a line is counted, so that the roster knows how many there are. A script that has begun to
-- write must not fail: where an index or the roster is of another type or is no number, it goes on, and a listing finds the damage.
local function try(...)
  local reply = redis.pcall(...)
  return type(reply) == 'number' and reply or 0
end

-- Lines of the index of entries: 'k' tenant, kind, key, digest; then when the lease ends, by which clock, and the status. With a
-- status there is a second one, 's' tenant, kind, status, key, digest, end, clock: those that run are few among those that ended.
local function lines(tenant, field, value)
  local status, clock = status_clock(value)
  local ending = sub(value, 49, 64) .. (clock == 'redis' and '1' or '0')
  local line = 'k' .. tenant .. '\0' .. field .. '\0' .. WHO .. ending .. status
  if status == '' then return line, line end
  local at = string.find(field, '\0', 1, true) or #field -- a damaged name has none
  local by = 's' .. tenant .. '\0' .. sub(field, 1, at) .. status .. '\0' .. sub(field, at + 1) .. '\0' .. WHO
  return line, by .. ending
end

-- Forget all lines of this thread, whatever they say. The digest stands behind the last NUL of each.
local function clear_lines()
  local all, gone = redis.pcall('ZRANGE', ENTRIES, 0, -1), {}
  local own = '%z' .. WHO .. '[^%z]*$'
  for i = 1, #all do
    if string.find(all[i], own) then gone[#gone + 1] = all[i] end
  end
  try('HINCRBY', ROSTER, 'entries', -in_pages('ZREM', ENTRIES, gone))
end

-- Put, replace or remove an entry, in the order and in the index: `before` and `after` are its values, or false. Tell whether the
-- lines of a damaged one were left: the next listing that meets them clears them.
local function change_entry(tenant, field, before, after)
  local old, new, left, change = {}, {}, false, 0
  if before then
    changes[member('e', field, before)] = false
    local is_whole, one, two = pcall(lines, tenant, field, before)
    if is_whole then old = { one, two } else left = true end
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

-- What a TTL has taken leaves its lines. Each of the two indexes is cleared by who meets it, the roster with the last.
local function clear_over(place, letter)
  local rest = string.gsub(place, letter, '')
  if string.find(rest, '%a') then try('HSET', ROSTER, WHO, rest) else try('HDEL', ROSTER, WHO) end
end

-- Count threads that are listed, or no longer. A roster that lost its count gets none here: the new count would agree with an index
-- that lost its lines too. Without a count, the next listing builds both again.
local function count_listed(change)
  if try('HEXISTS', ROSTER, 'threads') == 1 then try('HINCRBY', ROSTER, 'threads', change) end
end

local function drop_line(line) count_listed(-try('ZREM', THREADS, line)) end

-- Begin a thread: where a TTL took one of this name, its lines go first. A thread that a TTL has taken leaves no counter behind:
-- where there is one, revisions, and so fences, start with the time.
local function first_row(ttl_ms, at, place, line)
  if place and string.find(place, 'e') then clear_lines() end
  if place and string.find(place, 'l') then drop_line(line) end
  return {
    generation = '0', revision = ttl_ms > 0 and at or 0, epoch = 0, seq = 0, created = int(at), updated = int(at), checkpoints = 0,
    writes = 0, entries = 0, stored = 0, info_version = 0, info = 0, ends = 0, tokens = '',
  }
end

-- A thread begins only in the store that its writer knows, whose naming key is the last argument. Return why it cannot begin, or
-- nothing and the bucket if the identity does not have it yet. An identity that is gone is for the client to restore, with all
-- buckets: one with this bucket alone would hide the others. (A Cluster has the identity on another node: there the client looks.)
local function refusal_or_new_bucket(knows)
  if not knows or not IDENTITY then return nil end
  local bucket = string.match(M, '{(%d+)}')
  local key, noted = unpack(redis.call('HMGET', IDENTITY, 'key', bucket), 1, 2)
  if not key then return { 'damaged', TORN } end
  if key ~= ARGV[#ARGV] then return { 'elsewhere' } end
  return nil, not noted and bucket
end

-- Write the row, and make everything beside it say what the row says. This is the one place that does: whatever a commit was, `was` is
-- how the thread stood before it (nil: unknown, or not at all), and the row is how it stands now. `is_first`: nothing was left of a
-- thread of this name, so a roster without a count is that of a new bucket.
local function settle(was, row, tenant, id, ttl_ms, is_first, new_bucket)
  local is, raw = standing(row), row_text(row)
  local is_listed, is_bare = sub(is, 1, 1) == 'l', is == ''
  if was == is and row.ends == 0 then -- the usual case
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
  if not was or (sub(was, 1, 1) == 'l') ~= is_listed then
    local line = tenant .. '\0' .. id
    local change = is_listed and try('ZADD', THREADS, 0, line) or -try('ZREM', THREADS, line)
    -- also by 0: a roster without this count is none
    if is_first then try('HINCRBY', ROSTER, 'threads', change) else count_listed(change) end
  end
  local ends = keep_alive(row, ttl_ms)
  if is_bare and row.ends == 1 then
    try('HDEL', ROSTER, WHO) -- nothing of it is to stay when it ends
  else
    try('HSET', ROSTER, WHO, ends .. is)
  end
  if new_bucket then
    try('HSET', IDENTITY, new_bucket, '1')
    try('HINCRBY', IDENTITY, 'buckets', 1)
  end
  return raw
end
