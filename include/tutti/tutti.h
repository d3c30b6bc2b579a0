// Everything that a program needs: #include <tutti/tutti.h>.
#pragma once

#include "tutti/communicator.h"
#include "tutti/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"
#include "tutti/version.h"
