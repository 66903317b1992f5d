-- What a listing shows of a thread.
return summarize(unpack(cmsgpack.unpack(ARGV[1]), 1, 3))
