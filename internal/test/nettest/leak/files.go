// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// Dirs names the directories in which plugins keep state: ours, the runtime
// library's cache with host-local's addresses, and tuning's backups.
func Dirs() []string {
	p := paths.Default()
	return []string{p.Run, p.State, p.CNI, "/run/cni"}
}

// files lists every file below dirs that is not a directory, because an empty directory is no
// state. It skips a file that vanishes meanwhile.
func files(dirs []string) (State, error) {
	var s State
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !d.IsDir() {
				s = append(s, line("file", path))
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list files: %w", err)
		}
	}
	return s, nil
}

// Standing reports whether a line is of an object that stays by design when the attachments that
// needed it are gone. Such an object belongs to the node or the network:
//
//   - a bridge, its attributes (which follow its ports), its gateway address
//     and that address' routes (the reference never deletes them and
//     deployments rely on it)
//   - our table with its sets, chains and static rules, its schema number,
//     and the numbers of its network policies; never another element
//   - the tables and chains that every iptables has, which the first rule makes
//   - host-local's lock and last reserved address, and the address index
//   - locks, the kernel probe's answer and the records of bridges and forwarding
//     under our run directory
func Standing(line string) bool {
	w := strings.Fields(line)
	switch w[0] {
	case "link", "address", "route", "qdisc", changed:
		return w[1] == "bridge"
	case "nft":
		return standingNft(w[1:])
	case "file":
		return standingFile(w[1])
	}
	return false
}

// standingNft checks the words after "nft": kind, family, table, name.
func standingNft(w []string) bool {
	if w[2] != "patchbay" {
		return ofIptables(w)
	}
	return w[0] != "element" || w[3] == "schema" || w[3] == "policies"
}

// ofIptables reports whether an object is a table of iptables-nft, or one of that table's own chains.
func ofIptables(w []string) bool {
	if w[1] != "ip" && w[1] != "ip6" || !slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, w[2]) {
		return false
	}
	return w[0] == "table" || w[0] == "chain" && slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, w[3])
}

// standingFile decides by the file's name, because no state of an attachment has such a name.
func standingFile(path string) bool {
	base := filepath.Base(path)
	switch {
	case base == "lock", base == "grant", base == "nft-expiry", base == "policy.former", strings.HasPrefix(base, "last_reserved_ip."), strings.HasSuffix(base, ".lock"), strings.HasSuffix(base, ".idx"):
		return true
	case filepath.Base(filepath.Dir(path)) == "made": // notes about objects that stay when attachments go
		return true
	}
	return false
}
