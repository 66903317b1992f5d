-- What a listing shows of a thread. The line that an expired thread leaves in the index is removed
-- here.
local with_head, member = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local raw, row, damage, expired = look()
if not row then
  -- A line that nothing else knows of.
  if member and not damage and not expired then damage = TORN end
  if member and expired then
    drop_line(member)
    clear_expired(expired, 'l')
  end
  return { damage and '!' .. damage or false }
end
local head, value = false, false
if with_head then head, value = head_record('') end
return {
  raw, redis.call('HGET', M, 'info'), redis.call('HGET', M, 'projection'), head, value, redis.call('HLEN', R), redis.call('PTTL', M),
}
