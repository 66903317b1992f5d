-- Add up the totals that the rosters of some buckets have of a tenant. Those of a bucket in which
-- threads may expire are not kept: its rows are added up.
local tenant, threads, checkpoints, stored = ARGV[1], 0, 0, 0
for i = 1, #KEYS do
  local is_kept, t, c, b = unpack(redis.call('HMGET', KEYS[i], 'totals', 't\0' .. tenant, 'c\0' .. tenant, 'b\0' .. tenant), 1, 4)
  if not is_kept then t, c, b = unpack(add_up(KEYS[i])[tenant] or { 0, 0, 0 }) end
  threads, checkpoints, stored = threads + (t or 0), checkpoints + (c or 0), stored + (b or 0)
end
return { threads, checkpoints, stored }
