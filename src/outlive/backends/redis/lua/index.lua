-- A page of lines of each of some indexes; false for an index that does not have as many lines as
-- its roster says. The keys are the indexes, then their rosters; that of the index by time of a
-- single server is the identity. In a line of entries the key is followed by NUL, digest, end and
-- clock of the lease, and perhaps its status.
local limit, statuses, lapsed, mark, count_field, must_exist = unpack(cmsgpack.unpack(ARGV[1]), 1, 6)
local time = redis.call('TIME')
local now = string.format('%016x', time[1] * 1000000 + time[2])
local sub, indexes = string.sub, #KEYS / 2

local function fits(line, start)
  local at = (string.find(line, '\0', start, true) or #line) + 33
  if lapsed ~= 'any' and lapsed ~= (sub(line, at + 16, at + 16) ~= '1' or sub(line, at, at + 15) <= now) then return false end
  if not statuses then return true end
  for i = 1, #statuses do
    if statuses[i] == sub(line, at + 17) then return true end
  end
  return false
end

local function find(key, low, high, start)
  if lapsed == 'any' and not statuses then return redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit) end
  local matching = {}
  while true do
    local page = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, 500)
    for i = 1, #page do
      if fits(page[i], start) then matching[#matching + 1] = page[i] end
      if #matching == limit then return matching end
    end
    if #page < 500 then return matching end
    low = '(' .. page[#page]
  end
end

-- On a single server a noted bucket has a roster; in a Cluster it may be noted before. A roster
-- without its mark was lost. So was the identity, if the client knows the naming key in it.
local function is_whole(index, roster)
  local known = redis.call('HMGET', roster, mark, count_field)
  if not known[1] and (must_exist or redis.call('EXISTS', roster) == 1) then return false end
  return redis.call('ZCARD', index) == tonumber(known[2] or 0)
end

local pages = {}
for i = 1, indexes do
  pages[i] = is_whole(KEYS[i], KEYS[indexes + i]) and find(KEYS[i], ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1]))
end
return pages
