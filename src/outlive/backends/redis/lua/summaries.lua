-- What a listing shows of some threads of a single server. The keys are those of one after the other.
local with_head, lines, times = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local replies, width = {}, #KEYS / #lines
for i = 1, #lines do
  M, R, O, C, W, E, THREADS, ENTRIES, ROSTER, RECENT, IDENTITY = unpack(KEYS, (i - 1) * width + 1, i * width)
  DIGEST = sub(M, -34, -3)
  replies[i] = summarize(with_head, lines[i], times[i])
end
return replies
