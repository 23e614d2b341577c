// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// holdRecordProgram is `holdrecord PLUGIN COMMAND...`. It runs the command while it holds the
// locks of a plugin's records, like a slow ADD.
func holdRecordProgram() {
	store := record.New(paths.Default().Run)
	defer store.Close()
	list, err := store.List("")
	for _, rec := range list {
		if err == nil && rec.Plugin == os.Args[1] {
			_, err = store.ReadLocked(rec.Network, rec.Owner, rec.Plugin)
		}
	}
	if err == nil {
		cmd := exec.Command(os.Args[2], os.Args[3:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		err = cmd.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tearProgram is `tear`. It cuts every record short.
func tearProgram() {
	found, err := filepath.Glob(filepath.Join(paths.Default().Run, "attachments", "*", "*"))
	for _, path := range found {
		if err == nil {
			err = os.Truncate(path, 20)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// sysctlProgram is `sysctl KEY VALUE`.
func sysctlProgram() {
	if err := os.WriteFile(filepath.Join("/proc/sys", os.Args[1]), []byte(os.Args[2]), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
