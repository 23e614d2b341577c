// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package paths knows the directories that Patchbay uses on a node. The environment can change
// every path (docs/formats.md). Rootless callers and tests do that.
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

	Containerd string // PATCHBAY_CONTAINERD_DIR: directories of containerd's state, separated by colons
}

// Holds returns the directory in which the Docker driver keeps the namespaces of attachments. The
// driver puts a namespace there before its ADD, and removes it after its DEL.
func (p Paths) Holds() string { return filepath.Join(p.Run, "docker", "netns") }

// Pools returns the directory in which host-local reserves addresses, one directory for each network, unless a
// configuration names another.
func (p Paths) Pools() string { return filepath.Join(p.CNI, "networks") }

// Default returns the paths that the environment of this process sets.
func Default() Paths { return From(os.Getenv) }

// From returns the paths that an environment sets. A path that it does not set has its default.
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

		Containerd: dir("PATCHBAY_CONTAINERD_DIR", "/run/containerd:/run/k3s/containerd"),
	}
}
