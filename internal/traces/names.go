// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/spec"
)

// Names finds the names of an owner in comments of elements, in the names of cached results and of files that plugins leave,
// and in address files. The owner is a hash of the names, so a match is certain. Without a match both names are empty.
func (n *Node) Names(network string, o owner.Key, elems []nft.Element) (names spec.AttachmentKey) {
	for _, e := range elems {
		if in, id, ifName, ok := nft.NamesOf(e.Comment); ok && owner.Of(in, id, ifName) == o && in == network {
			return spec.AttachmentKey{ContainerID: id, IfName: ifName}
		}
	}
	n.Candidates(network, func(a spec.AttachmentKey) bool {
		found := owner.Of(network, a.ContainerID, a.IfName) == o
		if found {
			names = a
		}
		return found
	})
	return names
}

// Candidates calls try with the names that files may have of attachments of a network, until try returns true.
func (n *Node) Candidates(network string, try func(spec.AttachmentKey) (stop bool)) {
	for _, pattern := range append([]string{results.Pattern(n.Paths.CNI, network)}, n.Patterns...) {
		prefix, rest, _ := strings.Cut(filepath.Base(pattern), "*")
		sep, suffix, _ := strings.Cut(rest, "*")
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), prefix), suffix)
			if splits(name, sep, try) {
				return
			}
		}
	}
	held, _ := Reserved(context.Background(), Pool(n.Paths, network, ""), ipam.Holder{}) // of what cannot be read, no names are known
	for _, r := range held {
		if r.Holder.IfName != "" && try(spec.AttachmentKey{ContainerID: r.Holder.ID, IfName: r.Holder.IfName}) {
			return
		}
	}
}

// splits tries every way to split name in two at sep. Both parts may contain sep too.
func splits(name, sep string, try func(spec.AttachmentKey) bool) bool {
	for i := range len(name) {
		if strings.HasPrefix(name[i:], sep) && try(spec.AttachmentKey{ContainerID: name[:i], IfName: name[i+len(sep):]}) {
			return true
		}
	}
	return false
}

// Patterns returns the patterns of a plugin's files (plugin.Plugin.Files) with their directory.
func Patterns(p paths.Paths, files []string) (patterns []string) {
	for _, pattern := range files {
		patterns = append(patterns, filepath.Join(p.RunCNI, pattern))
	}
	return patterns
}

// Files returns the files that plugins have left of an attachment.
func (n *Node) Files(a spec.AttachmentKey) (found []string) {
	for _, pattern := range n.Patterns {
		path := strings.Replace(strings.Replace(pattern, "*", a.ContainerID, 1), "*", a.IfName, 1)
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// CachedNetNS returns the path of an attachment's namespace from libcni's cache, or "".
func CachedNetNS(p paths.Paths, network string, a spec.AttachmentKey) string {
	data, err := durable.ReadConf(results.Path(p.CNI, network, a.ContainerID, a.IfName))
	if err != nil {
		return ""
	}
	if f, ok, _ := results.Decode(data); ok && f.IsOf(network, a.ContainerID, a.IfName) {
		return f.Place()
	}
	return ""
}
