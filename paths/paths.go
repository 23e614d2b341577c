// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package paths knows the directories that Patchbay uses on a node. The environment can change
// every path, for rootless callers and for tests (docs/formats.md).
package paths

import (
	"os"
	"path/filepath"
	"strings"
)

// Paths are the directories that Patchbay reads and writes.
type Paths struct {
	Run    string // PATCHBAY_RUN_DIR: records and locks; empty after a reboot
	State  string // PATCHBAY_STATE_DIR: what survives a reboot
	CNI    string // PATCHBAY_CNI_DIR: host-local addresses, libcni's cache
	Etc    string // PATCHBAY_ETC_DIR: configuration of the operator, such as tuning's allow list
	RunCNI string // PATCHBAY_CNI_RUN_DIR: run directory of the reference plugins
	Proc   string // PATCHBAY_PROC: procfs, for tests
	Sys    string // PATCHBAY_SYS: sysfs, for tests
	NetNS  string // PATCHBAY_NETNS_DIR: directory of named namespaces
}

// Holds returns the directory in which the Docker driver keeps the namespaces of attachments.
// A namespace is there from before its ADD until after its DEL.
func (p Paths) Holds() string { return filepath.Join(p.Run, "docker", "netns") }

// Default returns the paths of a node. The environment of the process may change them.
func Default() Paths { return From(os.Getenv) }

// From returns the paths that an environment sets.
func From(getenv func(string) string) Paths {
	dir := func(name, def string) string {
		if v := getenv(name); strings.HasPrefix(v, "/") {
			return v
		}
		return def
	}
	return Paths{
		Run:    dir("PATCHBAY_RUN_DIR", "/run/patchbay"),
		State:  dir("PATCHBAY_STATE_DIR", "/var/lib/patchbay"),
		CNI:    dir("PATCHBAY_CNI_DIR", "/var/lib/cni"),
		Etc:    dir("PATCHBAY_ETC_DIR", "/etc/cni"),
		RunCNI: dir("PATCHBAY_CNI_RUN_DIR", "/run/cni"),
		Proc:   dir("PATCHBAY_PROC", "/proc"),
		Sys:    dir("PATCHBAY_SYS", "/sys"),
		NetNS:  dir("PATCHBAY_NETNS_DIR", "/run/netns"),
	}
}
