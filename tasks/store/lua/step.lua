-- Store the result of a step that made no call; the first one wins. A repeat by nature.
-- A: job, run, step, hash, value, done, total, note ('' no progress to tell), plan ('' none),
--    from_blob (1: it was made of the uploaded document, which is dropped, '' not)
-- returns: ok and the value that counts (hash, line feed, JSON), or lost
local job = load(A.job)
if not holds(job, A) then return {'lost', ''} end
if keep_step(job, A) and A.note ~= '' then advance(job, A) end
if A.from_blob == '1' then redis.call('DEL', K('blob', job.id)) end
return {'ok', redis.call('HGET', K('steps', job.id), A.step)}
