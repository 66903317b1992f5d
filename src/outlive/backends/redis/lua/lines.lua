-- Both indexes and the roster of a bucket, in a Cluster the size of its index by time, and its
-- totals, at one moment. The totals are 'right', 'wrong', or 'lost': not kept, though nothing here
-- may expire.
local ROSTER = KEYS[3]
local roster, totals, may_expire = redis.call('HGETALL', ROSTER), add_up(ROSTER)
local kept, state = {}, 'right'
for i = 1, #roster, 2 do kept[roster[i]] = roster[i + 1] end
for tenant, total in pairs(totals) do
  for i, name in ipairs({ 't', 'c', 'b' }) do
    local field = name .. '\0' .. tenant
    if tonumber(kept[field] or 0) ~= total[i] then state = 'wrong' end
    kept[field] = nil
  end
end
for field, value in pairs(kept) do
  if string.find(field, '%z') and value ~= '0' then state = 'wrong' end
end
if not kept.totals then state = (may_expire or #roster == 0) and 'right' or 'lost' end
return { redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('ZRANGE', KEYS[2], 0, -1), roster, KEYS[4] and redis.call('ZCARD', KEYS[4]) or -1, state }
