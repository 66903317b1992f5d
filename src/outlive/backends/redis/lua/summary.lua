-- What a listing shows of a thread. One that a TTL has taken leaves its line in the index: it is cleared here.
local with_head, member = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
local raw, row, wrong, place = look()
if not row then
  if member and not wrong and not place then wrong = TORN end -- a line that nothing else knows of
  if member and place then
    drop_line(member)
    clear_over(place, 'l')
  end
  return { wrong and '!' .. wrong or false }
end
local head, value = false, false
if with_head then head, value = head_record('') end
return {
  raw, redis.call('HGET', M, 'info'), redis.call('HGET', M, 'projection'), head, value, redis.call('HLEN', R), redis.call('PTTL', M),
}
