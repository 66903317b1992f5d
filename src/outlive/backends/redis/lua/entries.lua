-- A page of the entries of one thread, by kind and key.
local limit, statuses, lapsed = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local low, high = ARGV[2], ARGV[3]
local raw, row, damage = look()
if not row then return { damage and '!' .. damage or false } end
local at, reply = hex(now()), { raw }
while #reply <= 2 * limit do
  local page = redis.call('ZRANGEBYLEX', O, low, high, 'LIMIT', 0, 500)
  if #page == 0 then break end
  for i = 1, #page do
    local name = sub(page[i], 2, -10)
    local value = redis.call('HGET', E, name)
    if value and sub(value, 65, 72) ~= sub(page[i], -8) then value = '' end
    if (not value or is_asked(value, statuses, lapsed, at)) and #reply <= 2 * limit then
      reply[#reply + 1] = name
      reply[#reply + 1] = value
    end
  end
  low = '(' .. page[#page]
end
return reply
