#!/usr/bin/env bash
# open_mpi.sh MPIRUN ARGUMENTS...: runs this mpirun of Open MPI with a session folder of its own.
# By default all jobs of a user share the session folder ompi.HOST.UID. The last job that ends removes it, and a job
# that starts at this moment fails ("A call to mkdir was unable to create the desired directory").
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
OMPI_MCA_orte_tmpdir_base=$folder "$@"
