-- A page of a bucket's index of entries. A member ends with when its lease ends, by which clock, and its status.
local limit, statuses, lapsed, key_start = unpack(cmsgpack.unpack(ARGV[1]), 1, 4)
local low, high = ARGV[2], ARGV[3]
local time = redis.call('TIME')
local at = string.format('%016x', time[1] * 1000000 + time[2])
local found = {}
while #found < limit do
  local page = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', 0, 500)
  if #page == 0 then break end
  for i = 1, #page do
    local suffix = string.find(page[i], '\0', key_start, true) + 33 -- behind the key and the digest
    local fits = lapsed == 'any'
      or lapsed == (string.sub(page[i], suffix + 16, suffix + 16) ~= '1' or string.sub(page[i], suffix, suffix + 15) <= at)
    if fits and statuses then
      local status = string.sub(page[i], suffix + 17)
      fits = false
      for j = 1, #statuses do fits = fits or statuses[j] == status end
    end
    if fits and #found < limit then found[#found + 1] = page[i] end
  end
  low = '(' .. page[#page]
end
return found
