// The key by which the ranks of a job know each other: at least 16 bytes that nobody else has. Looked for in this
// order:
//
//   1. a unique id, which carries one; if 2 or 3 is given as well, it is mixed in, because an id travels through stores
//      that others may read
//   2. a file: CommunicatorOptions::job_key_file, then TUTTI_JOB_KEY_FILE
//   3. TUTTI_JOB_KEY, hexadecimal; `tutti run` makes one for each job
//   4. this machine's: a file of this user's, made when it is first needed. Who can read it is a process of this user
//      on this machine, and so are all ranks of a job that has no other key.
//
// Whatever is given is hashed into 32 bytes. No message, log or recording ever shows a key. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "tutti/result.h"

namespace tutti {

struct JobKey {
  Key key{};
  wire::KeyKind kind = wire::KeyKind::kGiven;
  std::string origin;  // in words: "the file /x (TUTTI_JOB_KEY_FILE)"
};

inline constexpr std::size_t kLeastKeyBytes = 16;
inline constexpr std::size_t kMostKeyBytes = 4096;

// The first that is given of 2 and 3, else 4. `variable`: who has named the file, for messages. Errors: kConfig (a file
// that cannot be read, is short, is not this user's, or that others may read), kSystem (no place for the machine's
// key).
Result<JobKey> find_job_key(const std::string& file, std::string_view variable, const std::string& hexadecimal);

// The one of 2 and 3 that find_job_key() would take; nothing if neither is given. Errors: kConfig, as above.
Result<std::optional<JobKey>> configured_key(const std::string& file, std::string_view variable,
                                             const std::string& hexadecimal);

// 2. alone, 3. alone.
Result<JobKey> key_of_file(const std::string& path, std::string_view variable);
Result<JobKey> key_of_text(std::string_view hexadecimal);

// 4. alone, in the first of these folders that serves; all ranks of a user must be given the same ones.
Result<JobKey> machine_key(std::span<const std::string> folders);

// The folders that find_job_key() gives it. Folders that depend on the user's number alone come first, because the
// environments of a job's ranks may differ. TMPDIR and XDG_CACHE_HOME are asked only if those cannot be used: for
// example if the system's temporary files are read-only, or if another user has taken the name there.
std::vector<std::string> machine_key_folders(uid_t user, const EnvironmentVariables& environment);

// The key that the secret of a unique id gives, and the job id, which may be seen.
JobKey key_of_secret(std::string_view secret);
// The key of the ranks of a unique id, whose own key is `of_id`: both, if a key is configured.
JobKey key_of_id(const JobKey& of_id, const std::optional<JobKey>& configured);
std::string job_id_of_secret(std::string_view secret);

// "set TUTTI_JOB_KEY_FILE ...": how a key is given to all ranks.
std::string_view how_to_give_a_key();

// What a rank is told whose proof is wrong, and what the server remembers of it.
std::string words_of_other_key(wire::KeyKind here, wire::KeyKind there, std::string_view who);

}  // namespace tutti
