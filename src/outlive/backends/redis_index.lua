-- Some lines of each of some indexes, one behind the other. A line of entries has behind its key: NUL, digest, when its lease
-- ends, by which clock, and perhaps its status.
local limit, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local time = redis.call('TIME')
local now = string.format('%016x', time[1] * 1000000 + time[2])
local sub = string.sub

local function fits(line, start)
  local at = string.find(line, '\0', start, true) + 33
  if lapsed ~= 'any' and lapsed ~= (sub(line, at + 16, at + 16) ~= '1' or sub(line, at, at + 15) <= now) then return false end
  if not statuses then return true end
  for i = 1, #statuses do
    if statuses[i] == sub(line, at + 17) then return true end
  end
  return false
end

local function look(key, low, high, start)
  if lapsed == 'any' and not statuses then return redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit) end
  local found = {}
  while true do
    local page = redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, 500)
    for i = 1, #page do
      if fits(page[i], start) then found[#found + 1] = page[i] end
      if #found == limit then return found end
    end
    if #page < 500 then return found end
    low = '(' .. page[#page]
  end
end

local found = {}
for i = 1, #KEYS do found[i] = look(KEYS[i], ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])) end
return found
