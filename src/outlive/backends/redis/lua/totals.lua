-- Add up the totals that the rosters of some buckets have of a tenant. Those of a bucket in which
-- threads may expire are not kept: its rows are added up. The keys are the rosters, then the indexes of
-- threads. A roster that was lost has no count, and one that lost lines another count than its index:
-- return the places of these too, as `index` finds them. In a Cluster a bucket may be noted before it
-- has a roster.
local tenant, must_exist, buckets = ARGV[1], ARGV[2] == '1', #KEYS / 2
local threads, checkpoints, stored, torn = 0, 0, 0, {}
for i = 1, buckets do
  local count, is_kept, t, c, b =
    unpack(redis.call('HMGET', KEYS[i], 'threads', 'totals', 't\0' .. tenant, 'c\0' .. tenant, 'b\0' .. tenant), 1, 5)
  local is_lost = not count and (must_exist or redis.call('EXISTS', KEYS[i]) == 1)
  if is_lost or redis.call('ZCARD', KEYS[buckets + i]) ~= tonumber(count or 0) then torn[#torn + 1] = i end
  if not is_kept then t, c, b = unpack(add_up(KEYS[i])[tenant] or { 0, 0, 0 }) end
  threads, checkpoints, stored = threads + (t or 0), checkpoints + (c or 0), stored + (b or 0)
end
return { threads, checkpoints, stored, torn }
