// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package paths says where things live on a node. Every path can be moved by
// the environment, for rootless callers and for tests (docs/formats.md).
package paths

import (
	"os"
	"path/filepath"
	"strings"
)

// Paths are the directories Patchbay reads and writes.
type Paths struct {
	Run    string // PATCHBAY_RUN_DIR: records and locks, gone after a reboot
	State  string // PATCHBAY_STATE_DIR: what survives a reboot
	CNI    string // PATCHBAY_CNI_DIR: host-local addresses, libcni's cache
	Etc    string // PATCHBAY_ETC_DIR: what an operator configures, such as tuning's allow list
	RunCNI string // PATCHBAY_CNI_RUN_DIR: the reference plugins' own run directory
	Proc   string // PATCHBAY_PROC: procfs, for tests
	Sys    string // PATCHBAY_SYS: sysfs, for tests
	NetNS  string // PATCHBAY_NETNS_DIR: where named namespaces are bound
}

// Holds is the directory with the namespaces that the Docker driver holds for
// attachments, from before each ADD until after its DEL.
func (p Paths) Holds() string { return filepath.Join(p.Run, "docker", "netns") }

// Default returns the paths of a node, moved by the environment.
func Default() Paths { return From(os.Getenv) }

// From returns the paths as an environment moves them.
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
