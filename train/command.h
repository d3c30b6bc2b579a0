// The command line of tutti-train, which `tutti train` starts for every rank.
#pragma once

#include <string>
#include <vector>

#include "train/options.h"

namespace tutti::train {

struct Command {
  TrainOptions options;  // not complete() yet
  bool check = false;    // only say whether it could run
  bool plot = false;
  std::vector<std::string> logs;  // of plot
  std::string output;             // of plot
  int exit_status = -1;           // >= 0: all is said (help, or what is wrong)
};

Command parse_command(const std::vector<std::string>& arguments);

}  // namespace tutti::train
