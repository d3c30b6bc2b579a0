// The job key: a secret of at least 16 bytes, with which the ranks of a job authenticate each other. The key is
// searched for in this order:
//
//   1. A unique id contains a key. If 2 or 3 is configured as well, that key is mixed in, because an id may be passed
//      through stores that others can read.
//   2. A file: CommunicatorOptions::job_key_file, then TUTTI_JOB_KEY_FILE.
//   3. TUTTI_JOB_KEY, in hexadecimal. `tutti run` makes one for each job.
//   4. The machine key: a file of this user that is created when it is first needed. A process that can read it runs as
//      this user on this machine, and so do all ranks of a job that has no other key.
//
// The configured bytes are hashed into a key of 32 bytes. Messages, logs and recordings never contain a key. Any
// thread may call these functions.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/crypto/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "tutti/result.h"

namespace tutti {

struct JobKey {
  Key key{};
  wire::KeySource kind = wire::KeySource::kGiven;
  std::string origin;  // for messages, for example "the file /x (TUTTI_JOB_KEY_FILE)"
};

inline constexpr std::size_t kLeastKeyBytes = 16;
inline constexpr std::size_t kMostKeyBytes = 4096;

// Returns the key of source 2 or 3, whichever is configured first, or else that of source 4. `variable` is the name
// of the option that named the file, for messages. Errors: kConfig (a file that cannot be read, is too short,
// belongs to another user, or can be read by other users), kSystem (there is no folder for the machine key).
Result<JobKey> find_job_key(const std::string& file, std::string_view variable, const std::string& hexadecimal);

// Returns the key of source 2 or 3 that find_job_key() would use, or nothing if neither is configured. Errors:
// kConfig, as above.
Result<std::optional<JobKey>> configured_key(const std::string& file, std::string_view variable,
                                             const std::string& hexadecimal);

// The key of source 2 (a file), and the key of source 3 (hexadecimal text).
Result<JobKey> key_of_file(const std::string& path, std::string_view variable);
Result<JobKey> key_of_text(std::string_view hexadecimal);

// The key of source 4 (the machine key). Uses the first of these folders that is usable. All ranks of a user must
// pass the same folders.
Result<JobKey> machine_key(std::span<const std::string> folders);

// Returns the folders that find_job_key() passes to machine_key(). Folders that depend only on the user id come
// first, because the environments of a job's ranks may differ. TMPDIR and XDG_CACHE_HOME are used only if the
// others are unusable, for example because the system's temporary folder is read-only, or because another user has
// created a folder of that name there.
std::vector<std::string> machine_key_folders(uid_t user, const EnvironmentVariables& environment);

// Derives the key from the secret of a unique id. job_id_of_secret() derives the job id, which is not secret.
JobKey key_of_secret(std::string_view secret);
// The key of the ranks that use a unique id, whose own key is `of_id`. If a key is configured, both are combined.
JobKey key_of_id(const JobKey& of_id, const std::optional<JobKey>& configured);
std::string job_id_of_secret(std::string_view secret);

// Advice for error messages on how to give a key to all ranks ("give all ranks one key: TUTTI_JOB_KEY_FILE ...").
std::string_view how_to_give_a_key();

// The error message for a rank whose proof of the key is wrong. It is sent to the rank, and the server keeps it for
// its own error. `here` is the key source of the server, `there` that of the other side, which `who` names.
std::string other_key_message(wire::KeySource here, wire::KeySource there, std::string_view who);

}  // namespace tutti
