-- ADLRO's job_submit plugin: marks and holds the batch jobs that ADLRO places. Everything else is left to Slurm.
-- Put it beside slurm.conf as job_submit.lua and set JobSubmitPlugins=lua. If you have a job_submit.lua already, save
-- this file as adlro.lua and load it before the last line of yours: your functions are then called first.
--     pcall(dofile, "/etc/slurm/adlro.lua")
-- slurmctld looks at the time of job_submit.lua only: after a change of adlro.lua, touch job_submit.lua.
-- It runs inside slurmctld, so it only looks at the request. If it fails, the job is left to Slurm and the log says why.

-- ADLRO's partitions and their kinds of nodes: how many nodes, CPUs, memory in MB, the most GPUs of one model, and
-- GPUs by type. A job that fits no node listed here is left to Slurm, which refuses what it cannot run.
-- After a change of nodes or partitions, make this file again with 'adlro slurm install'.
local PARTITIONS = {@PARTITIONS@}
-- User ids, besides root, that may place jobs: the daemon's.
local PLACERS = {[0] = true@PLACERS@}
-- Node features that all nodes of a GPU model share. A job that asks for another feature is left to Slurm.
local FEATURES = {@FEATURES@}
-- Only for sites where each GPU has a GRES type of its own: the type that users ask for → the feature of its nodes.
local TYPES = {@TYPES@}
-- What users may tell ADLRO in a comment, as adlro:WORD. All other words are ADLRO's own.
local FOR_USERS = {family = true, estimate = true, models = true, gpumemory = true, token = true, restartable = true,
   signal = true, sizes = true}

-- Requests that ADLRO does not understand: a job that sets one of these is left to Slurm.
local TEXTS = {"req_nodes", "exc_nodes", "reservation", "licenses", "tres_per_socket", "tres_per_task", "burst_buffer",
   "batch_features", "prefer", "network", "clusters"}
local NUMBERS = {"shared", "contiguous", "req_switch", "ntasks_per_gpu", "ntasks_per_tres", "ntasks_per_socket",
   "ntasks_per_core", "sockets_per_node", "cores_per_socket", "threads_per_core", "pn_min_tmp_disk", "reboot",
   "power_flags"}
-- What a waiting job asks for: the owner may change it, but then Slurm has to place the job.
local SIZES = {"min_nodes", "max_nodes", "num_tasks", "min_cpus", "pn_min_cpus", "cpus_per_task", "ntasks_per_node",
   "tres_per_node", "tres_per_job", "cpus_per_tres", "mem_per_tres", "min_mem_per_node", "min_mem_per_cpu"}

local site_submit, site_modify = slurm_job_submit, slurm_job_modify

local function number(value)
   if value == slurm.NO_VAL or value == slurm.NO_VAL16 or value == slurm.NO_VAL64 then return nil end
   return value
end

local function is_set(job, field)
   local value = job[field]
   if type(value) == "number" then return number(value) ~= nil end
   return value ~= nil and value ~= ""
end

local function has_flag(job, flag)
   return flag ~= nil and math.floor((job.bitflags or 0) / flag) % 2 == 1
end

-- ---- comments -------------------------------------------------------------------------------------------------------

local function has(comment, word)
   return string.find(" " .. (comment or "") .. " ", "%sadlro:" .. word .. "[%s=]") ~= nil
end

-- A comment without the words of ours that `drops` names, and without the line that ADLRO writes for users.
local function without(comment, drops)
   local kept = {}
   for word in string.gmatch((string.gsub(comment or "", "%[adlro: [^%]]*%]", " ")), "%S+") do
      local name = string.match(word, "^adlro:(%a*)")
      if not (name and drops(name)) then kept[#kept + 1] = word end
   end
   return table.concat(kept, " ")
end

-- A comment of this user without the words that are ADLRO's own. Other text stays as it is.
local function cleaned(comment, uid)
   if PLACERS[uid] or not string.find(comment or "", "adlro:", 1, true) then return comment end
   return without(comment, function(name) return not FOR_USERS[name] end)
end

local function with(comment, word)
   return (comment == "" and "" or comment .. " ") .. "adlro:" .. word
end

local function marked(comment, word)
   return with(without(comment, function(name) return name == "held" or name == "userheld" end), word)
end

-- ---- is it a job that ADLRO places? -----------------------------------------------------------------------------------

-- The nodes that a job may use, if all of its partitions are ADLRO's and share no CPUs; nil otherwise.
local function nodes_of(asked, partitions)
   local names, nodes = {}, {}
   if (asked or "") == "" then
      for name, partition in pairs(partitions) do
         if partition.flag_default == 1 then names[1] = name end
      end
   else
      for name in string.gmatch(asked, "[^,]+") do names[#names + 1] = name end
   end
   for _, name in ipairs(names) do
      local share = partitions[name] and partitions[name].max_share or 0
      -- 0 is OverSubscribe=EXCLUSIVE, SHARED_FORCE + n is FORCE:n
      if not PARTITIONS[name] or share == 0 or share > (slurm.SHARED_FORCE or 32768) + 1 then return nil end
      for _, node in ipairs(PARTITIONS[name]) do nodes[#nodes + 1] = node end
   end
   return #names > 0 and nodes or nil
end

-- GPUs of a request such as gres:gpu:v100:2, and their type. nil: it is more than a number of GPUs of one kind.
local function gpus_in(text)
   if (text or "") == "" then return 0 end
   local item = string.gsub(text, "^gres[:/]", "")
   local kind, count = string.match(item, "^gpu:([%w_.%-]+)[:=](%d+)$")
   if kind then return tonumber(count), kind end
   if item == "gpu" then return 1 end
   count = string.match(item, "^gpu[:=](%d+)$")
   if count then return tonumber(count) end
   kind = string.match(item, "^gpu:([%w_.%-]+)$")
   if kind then return 1, kind end
   return nil
end

local function has_known_features(job, has_gpus)
   local asked = job.features or ""
   if asked == "" then return true end
   if not has_gpus or string.find(asked, "[^%w_.%-&|,]") then return false end
   for word in string.gmatch(asked, "[^&|,]+") do
      if not FEATURES[word] then return false end
   end
   return true
end

local function is_understood(job)
   for _, field in ipairs(TEXTS) do
      if is_set(job, field) then return false end
   end
   for _, field in ipairs(NUMBERS) do
      if is_set(job, field) and (job[field] ~= 0 or field == "shared") then return false end
   end
   return (job.script or "") ~= "" and not job.cron_job and not is_set(job, "het_job_offset")
      and not has_flag(job, slurm.GRES_ENFORCE_BIND) and not has_flag(job, slurm.SPREAD_JOB)
      and job.min_mem_per_node ~= 0  -- all memory of the node
end

-- CPUs and memory that a job needs in all.
local function cpus_of(job, gpus)
   local tasks = math.max(number(job.num_tasks) or 1, number(job.ntasks_per_node) or 1)
   local per_gpu = tonumber(string.match(job.cpus_per_tres or "", "(%d+)$") or 0)
   return math.max(number(job.min_cpus) or 1, number(job.pn_min_cpus) or 1, tasks * (number(job.cpus_per_task) or 1),
      per_gpu * gpus)
end

local function memory_of(job, cpus, gpus)
   local per_gpu = tonumber(string.match(job.mem_per_tres or "", "(%d+)$") or 0)
   return math.max(job.min_mem_per_node or 0, (job.min_mem_per_cpu or 0) * cpus, per_gpu * gpus)
end

-- How many GPUs of the asked type, or of one model, a node has.
local function gpus_at(node, kind)
   if kind then return node.gpus[kind] or 0 end
   return node.most
end

-- Whether `gpus` GPUs can be given as whole nodes that all have the same number of them; on so many nodes.
local function whole_nodes(nodes, gpus, kind)
   local each, room = nil, 0
   for _, node in ipairs(nodes) do
      local here = gpus_at(node, kind)
      if here > 0 then
         if each and each ~= here then return nil end
         each, room = here, math.max(room, here * node.nodes)
      end
   end
   return each and gpus % each == 0 and gpus <= room and gpus / each or nil
end

-- Whether ADLRO can place a job as well as Slurm: on one node, or on whole nodes with GPUs.
local function is_placeable(job, nodes)
   if not is_understood(job) then return false end
   local per_node, kind = gpus_in(job.tres_per_node)
   local per_job, other = gpus_in(job.tres_per_job)
   if not per_node or not per_job or (per_node > 0 and per_job > 0) then return false end
   kind = kind or other
   local least, most, tasks = number(job.min_nodes) or 1, number(job.max_nodes), number(job.num_tasks) or 1
   if most == 0 then most = nil end
   local gpus, count = math.max(per_node, per_job), 1
   if not has_known_features(job, gpus > 0) then return false end
   if least > 1 then  -- a gang of so many nodes
      if most ~= least then return false end
      gpus = per_node > 0 and per_node * least or per_job
      count = least
      if whole_nodes(nodes, gpus, kind) ~= least then return false end
   elseif most == nil and per_job > 0 then  -- one node, or a gang if it has more GPUs than one node
      local largest = 0
      for _, node in ipairs(nodes) do largest = math.max(largest, gpus_at(node, kind)) end
      count = per_job <= largest and 1 or whole_nodes(nodes, gpus, kind)
      if not count or (tasks > 1 and count == 1) then return false end
   elseif most ~= 1 and (most ~= nil or tasks > 1) then  -- Slurm may spread it over several nodes
      return false
   end
   local cpus = math.ceil(cpus_of(job, gpus) / count)
   local each = math.ceil(gpus / count)
   local memory = memory_of(job, cpus, each)
   for _, node in ipairs(nodes) do
      if each <= gpus_at(node, kind) and cpus <= node.cpus and memory <= node.memory then return true end
   end
   return false
end

-- gpu:v100:2 becomes gpu:2 and the feature of its nodes, where no device has the type v100.
local function untype(job, field)
   local count, kind = gpus_in(job[field])
   if not kind or not TYPES[kind] then return end
   job[field] = string.match(job[field], "^gres[:/]") .. "gpu:" .. count
   job.features = ((job.features or "") ~= "") and (job.features .. "&" .. TYPES[kind]) or TYPES[kind]
end

local function submit(job, partitions, uid)
   local priority = number(job.priority)
   -- --hold with the comment adlro:held is ADLRO's hold; any other hold is the user's own to end.
   local for_adlro = priority == 0 and has(job.comment, "held")
   -- In every partition: a job can be moved to one of ADLRO's later.
   local comment = cleaned(job.comment, uid)
   local is_forged = comment ~= job.comment
   if is_forged then job.comment = comment end
   local nodes = nodes_of(job.partition, partitions)
   if nodes and (priority == nil or priority == 0) and is_placeable(job, nodes) then
      untype(job, "tres_per_node")
      untype(job, "tres_per_job")
      job.comment = marked(comment, priority == 0 and not for_adlro and "userheld" or "held")
      job.priority = 0
   elseif is_forged and for_adlro then
      job.priority = slurm.NO_VAL
   end
   return slurm.SUCCESS
end

-- ---- changes of a job -------------------------------------------------------------------------------------------------

-- What we put into the latest wish, and what it asked for. For an array, Slurm calls us once for each part of it, and
-- each time with the same wish.
local written = {}

-- The comment and the priority that a user asks for, and whether we have changed the wish for an earlier part.
local function asked_of(wish, job, uid)
   local same = written.comment and wish.comment == written.comment and wish.priority == written.priority
      and written.uid == uid and written.array == job.array_job_id
   if same and os.time() - written.time <= 5 then return written.asked_comment, written.asked_priority, true end
   written = {}
   return wish.comment, wish.priority, false
end

-- Whether the owner asks for other resources, which ADLRO has not looked at.
local function is_other_request(wish)
   for _, fields in ipairs({SIZES, TEXTS, NUMBERS}) do
      for _, field in ipairs(fields) do
         if field ~= "power_flags" and is_set(wish, field) then return true end
      end
   end
   return false
end

local function modify(wish, job, partitions, uid)
   local comment, priority, is_changed = asked_of(wish, job, uid)
   local function write(text, new_priority)
      written = {asked_comment = comment, asked_priority = priority, comment = text, priority = new_priority,
         uid = uid, array = job.array_job_id, time = os.time()}
      wish.comment, wish.priority = text, new_priority
      return slurm.SUCCESS
   end
   -- What the user asks for, without words that are ADLRO's own. A comment in a wish cannot become none again, so a
   -- part of an array whose comment nobody asked to change gets the one that it has.
   local function as_asked()
      local text = cleaned(comment, uid)
      if is_changed then return write(text or job.comment or "", priority) end
      if text ~= comment then return write(text, priority) end
      return slurm.SUCCESS
   end
   local held, userheld = has(job.comment, "held"), has(job.comment, "userheld")
   local was_placed = has(job.comment, "decision")
   if not held and not userheld and not was_placed then return as_asked() end
   local denied = slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
   if (job.job_state or 0) % 256 ~= 0 then  -- it does not wait
      return (comment and not PLACERS[uid]) and denied or as_asked()
   end
   -- A user held the job after ADLRO last looked: the hold stays.
   if comment and PLACERS[uid] then
      if not userheld or has(comment, "userheld") then return as_asked() end
      if not has(comment, "held") then return denied end
      return write(marked(comment, "userheld"), priority)
   end
   local function give_back(hold_ends)
      local text = with(without(job.comment, function() return true end), "released=" .. os.time())
      return write(text, hold_ends and slurm.INFINITE or priority)
   end
   -- What was placed may be pinned to nodes. Only ADLRO itself can unpin it, and gives it back when it next looks.
   if is_set(wish, "partition") and not was_placed and not nodes_of(wish.partition, partitions) then
      return give_back(held)
   end
   if not PLACERS[uid] then
      -- A new nice value ends a hold in Slurm 22.05.
      if comment or is_set(wish, "req_nodes") or (is_set(wish, "nice") and job.priority == 0) then return denied end
      if is_other_request(wish) then
         return was_placed and denied or give_back(held)
      end
   end
   -- ADLRO holds a job again that it has placed: it marks the job first, so both words are there.
   local is_withdrawn = held and was_placed and PLACERS[uid]
   if priority == 0 and not is_withdrawn and (held or not PLACERS[uid]) then
      return write(marked(job.comment, "userheld"), priority)
   elseif priority == slurm.INFINITE and userheld then
      if not was_placed and not nodes_of(job.partition, partitions) then return give_back(true) end
      return write(marked(job.comment, "held"), 0)
   elseif number(priority) and priority ~= 0 and not PLACERS[uid] then
      return denied
   end
   return as_asked()
end

-- ---- what Slurm calls -------------------------------------------------------------------------------------------------

-- Our answer; an error of ours must never keep users from their jobs.
local function safely(what, ours, ...)
   local went_well, answer = pcall(ours, ...)
   if went_well then return answer end
   slurm.log_error("adlro: %s left to Slurm: %s", what, tostring(answer))
   return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, uid)
   local said = site_submit and site_submit(job, partitions, uid) or slurm.SUCCESS
   if said ~= slurm.SUCCESS then return said end
   return safely("a job", submit, job, partitions, uid)
end

function slurm_job_modify(wish, job, partitions, uid)
   local said = site_modify and site_modify(wish, job, partitions, uid) or slurm.SUCCESS
   if said ~= slurm.SUCCESS then return said end
   return safely("a change", modify, wish, job, partitions, uid)
end

return slurm.SUCCESS
