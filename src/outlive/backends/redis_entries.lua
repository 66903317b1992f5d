-- A page of the entries of one thread, by kind and key.
local limit, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local low, high = ARGV[2], ARGV[3]
local raw, row = load_row()
if not row then return { raw or false } end
local at, found = hex(now()), { raw }
local function fits(value)
  local status, clock = status_clock(value)
  if statuses then
    local is_asked = false
    for i = 1, #statuses do is_asked = is_asked or statuses[i] == status end
    if not is_asked then return false end
  end
  return lapsed == 'any' or lapsed == (clock ~= 'redis' or sub(value, 49, 64) <= at)
end
while #found <= 2 * limit do
  local page = redis.call('ZRANGEBYLEX', O, low, high, 'LIMIT', 0, 500)
  if #page == 0 then break end
  for i = 1, #page do
    local name = sub(page[i], 2)
    local value = redis.call('HGET', E, name)
    if (not value or fits(value)) and #found <= 2 * limit then
      found[#found + 1] = name
      found[#found + 1] = value
    end
  end
  low = '(' .. page[#page]
end
return found
