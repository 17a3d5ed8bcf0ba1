-- How the delivery of a job's callback goes. A repeat only says the same again.
-- A: job, life (whose end the letter tells of), callback (JSON)
-- returns: ok or none (the job is gone)
local job = load(A.job)
if not job then return {'none'} end
if job.life == A.life then redis.call('HSET', job.key, 'callback', A.callback) end
return {'ok'}
