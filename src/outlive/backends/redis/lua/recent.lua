-- A page of each of some indexes by time, newest first; false for an index that does not have as
-- many members as its roster counts threads. The keys are the indexes, then their rosters. A line is
-- what is left to the end of time, in hex, and the id. Lines of one moment come in any order, and
-- with the first page after a place those of its moment: the client sorts, and leaves those out.
local limit, is_single = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local start, indexes, END = ARGV[2], #KEYS / 2, 9007199254740992
local sub = string.sub

local function is_whole(index, roster)
  local count = redis.call('HGET', roster, 'threads')
  if not count and (is_single or redis.call('EXISTS', roster) == 1) then return false end
  return redis.call('ZCARD', index) == tonumber(count or 0)
end

local function find(key, low)
  local lines, counted, offset, last, step = {}, 0, 0, nil, limit + 2
  local first = low ~= '' and END - tonumber(sub(low, 2, 17), 16)
  while true do
    local part = redis.call('ZREVRANGEBYSCORE', key, first and string.format('%.0f', first) or '+inf', '-inf', 'WITHSCORES', 'LIMIT', offset, step)
    for i = 1, #part, 2 do
      local score = tonumber(part[i + 1])
      if counted >= limit and score ~= last then return lines end
      if sub(part[i], 1, #start) == start then
        lines[#lines + 1] = string.format('%016x', END - score) .. sub(part[i], #start + 1)
        if score ~= first then counted = counted + 1 end
        last = score
      end
    end
    if #part < 2 * step then return lines end
    offset = offset + step
    step = 100
  end
end

local pages = {}
for i = 1, indexes do pages[i] = is_whole(KEYS[i], KEYS[indexes + i]) and find(KEYS[i], ARGV[2 + i]) end
return pages
