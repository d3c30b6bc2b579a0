// The command line of tutti-train, which `tutti train` starts for every rank.
#pragma once

#include <string>
#include <vector>

#include "train/options.h"

namespace tutti::train {

struct Command {
  TrainOptions options;  // without the defaults that complete() fills in
  bool check = false;    // --check: only check whether the training could run
  // If 0 or greater, help or an error message has been printed, and the process must exit with this status. -1: the
  // command line could be parsed.
  int exit_status = -1;
};

// Parses the arguments after `tutti-train`. Prints help and errors itself.
Command parse_command(const std::vector<std::string>& arguments);

}  // namespace tutti::train
