// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/netns"
)

// Namespaces maps each network namespace of this node, except our own, to one of its paths. It
// finds namespaces with a process, and namespaces that are mounted in our mount namespace. proc
// is the path of procfs.
func Namespaces(proc string) (byID map[netns.ID]string, err error) {
	candidates, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "ns", "net"))
	if err != nil {
		return nil, err
	}
	bound, err := boundNamespaces(proc)
	if err != nil {
		return nil, err
	}
	byID = make(map[netns.ID]string)
	for _, path := range append(bound, candidates...) {
		ns, err := netns.Open(path)
		if netns.Gone(err) || errors.Is(err, fs.ErrPermission) && !slices.Contains(bound, path) {
			continue // the process has ended or belongs to another user
		}
		if err != nil {
			return nil, err
		}
		id, err := ns.ID()
		host, herr := ns.IsCurrent()
		ns.Close() //nolint:errcheck // read only
		if err = errors.Join(err, herr); err != nil {
			return nil, err
		}
		if _, known := byID[id]; !known && !host {
			byID[id] = path
		}
	}
	return byID, nil
}

// boundNamespaces returns the paths of network namespaces in this thread's mounts.
func boundNamespaces(proc string) (paths []string, err error) {
	list, err := boundAt(filepath.Join(proc, "thread-self", "mountinfo"))
	for _, b := range list {
		paths = append(paths, b.path)
	}
	return paths, err
}

// bound is a mount of a network namespace.
type bound struct {
	path  string
	inode uint64
}

// inodeOf returns the inode number in "net:[INODE]".
func inodeOf(text string) (inode uint64, ok bool) {
	number, ok := strings.CutPrefix(text, "net:[")
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return inode, err == nil
}

// boundAt reads the mounts of network namespaces. Their file system is nsfs, and their root is
// net:[INODE] (proc(5), mountinfo).
func boundAt(mountinfo string) (list []bound, err error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 5 {
			continue
		}
		if inode, ok := inodeOf(w[3]); ok {
			path := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(w[4])
			list = append(list, bound{path, inode})
		}
	}
	return list, lines.Err()
}

// Each calls fn with each of Namespaces that still exists, and joins the errors.
func Each(proc string, fn func(*netns.NS) error) error {
	spaces, err := Namespaces(proc)
	errs := []error{err}
	for _, path := range spaces {
		ns, err := netns.Open(path)
		if netns.Gone(err) {
			continue
		}
		if err == nil {
			err = fn(ns)
			ns.Close() //nolint:errcheck // read only
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
