// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// configurations checks every network's configuration, and reports files that cannot be read.
func configurations(ctx context.Context, n *Node) (found []Finding, err error) {
	if len(n.Networks)+len(n.Broken) == 0 {
		return []Finding{noNetwork(n.ConfDir)}, nil
	}
	for _, b := range n.Broken {
		found = append(found, problem(b.Error(), "repair or remove %s: runtimes stop at a broken file that comes first", b.File))
	}
	files := make(map[string]string)
	for _, net := range n.Networks {
		if other, twice := files[net.Name]; twice {
			found = append(found, warning(fmt.Sprintf("network %s is in %s and in %s: only the first is used", net.Name, other, net.File), "remove one of them"))
			continue
		}
		files[net.Name] = net.File
		found = append(found, n.validate(ctx, net)...)
	}
	return found, nil
}

// noNetwork returns the finding for a node without networks. The user can paste its command into
// a shell, even if the directory is missing.
func noNetwork(dir string) Finding {
	first := ""
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		first = "mkdir -p " + dir + " && "
	}
	return warning("no network is configured in "+dir, "%spatchbay network show patchbay > %s", first, filepath.Join(dir, "10-patchbay.conflist"))
}

// validate checks a network as `patchbay network validate` does.
func (n *Node) validate(ctx context.Context, net *Network) (found []Finding) {
	s := n.NewSession()
	defer s.Close()
	for _, f := range Validate(ctx, n.Runtime, s, net.List) {
		f.What = fmt.Sprintf("network %s: %s", net.Name, f.What)
		switch {
		case f.Level == Warning:
			f.Fix = fmt.Sprintf("correct %s, unless it is meant so", net.File)
		case errors.Is(f, invoke.ErrNotFound):
			f.Fix = fmt.Sprintf("correct %s, or install the plugin: patchbay install %s has ours", net.File, n.Runtime.Path()[0])
		default:
			f.Fix = fmt.Sprintf("correct %s; patchbay network validate %s", net.File, net.Name)
		}
		found = append(found, f)
	}
	return found
}

// statuses checks whether an ADD to each network would work now. It leaves out configurations that
// cannot be decoded, because configurations reports them.
func statuses(ctx context.Context, n *Node) (found []Finding, err error) {
	s := n.NewSession()
	defer s.Close()
	for _, net := range n.Networks {
		err := Status(ctx, n.Runtime, s, net.List)
		if errors.Is(err, spec.CodeDecoding) && len(n.validate(ctx, net)) > 0 {
			continue
		}
		if err != nil {
			what := fmt.Sprintf("network %s takes no containers now: %v", net.Name, err)
			if d := spec.AsError(err).Details; d != "" {
				what += " (" + d + ")"
			}
			found = append(found, problem(what, "repair that; then `patchbay status %s` says whether an ADD works", net.Name))
		}
	}
	return found, nil
}

// binaries reports the programs that CNI_PATH has under the names of our plugins. Different
// versions work together, because they share the state. But few operators want that.
func binaries(_ context.Context, n *Node) (found []Finding, err error) {
	byKind := map[string][]string{}
	for _, p := range n.NewSession().Plugins {
		path := find(n.Runtime.Path(), p.Name)
		if path == "" {
			continue
		}
		kind, kerr := kindOf(path)
		err = errors.Join(err, kerr)
		byKind[kind] = append(byKind[kind], p.Name)
	}
	dir := strings.Join(n.Runtime.Path(), ":")
	if names := n.absent(); len(byKind) > 0 && len(names) > 0 {
		found = append(found, warning(fmt.Sprintf("networks name %s, which %s lacks: patchbay uses its built-in ones, other runtimes find none", strings.Join(names, " "), dir),
			"patchbay install %s", n.Runtime.Path()[0]))
	}
	if names := byKind["other build"]; len(names) > 0 {
		found = append(found, warning(fmt.Sprintf("%s in %s are of another build of patchbay than this one", strings.Join(names, " "), dir), "patchbay install %s", n.Runtime.Path()[0]))
	}
	if names := byKind["other"]; len(names) > 0 {
		found = append(found, warning(fmt.Sprintf("%s in %s are not patchbay's", strings.Join(names, " "), dir),
			"patchbay install --backup DIR %s, or leave it so if that is meant", n.Runtime.Path()[0]))
	}
	if names := byKind["broken"]; len(names) > 0 {
		found = append(found, problem(fmt.Sprintf("%s in %s cannot be executed", strings.Join(names, " "), dir), "patchbay install %s", n.Runtime.Path()[0]))
	}
	return found, err
}

// absent returns the names of our plugins that a network uses but CNI_PATH lacks.
func (n *Node) absent() (names []string) {
	s := n.NewSession()
	defer s.Close()
	for _, net := range n.Networks {
		for _, p := range net.Plugins {
			ours := s.Own(p.Type, &spec.Call{Path: n.Runtime.Path()}) != nil
			if ours && find(n.Runtime.Path(), p.Type) == "" && !slices.Contains(names, p.Type) {
				names = append(names, p.Type)
			}
		}
	}
	return names
}

// find returns the path at which a runtime finds a plugin. If there is none, it returns "".
func find(dirs []string, name string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
}

// kindOf finds out which build a program is, without running it.
func kindOf(path string) (string, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) { // a symbolic link without a target
		return "broken", nil
	}
	if err != nil {
		return "broken", fmt.Errorf("look at %s: %w", path, err)
	}
	if !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 || fi.Size() == 0 {
		return "broken", nil
	}
	if plugin.IsSelf(path) {
		return "ours", nil
	}
	if fi.Size() > maxProgram {
		return "other", nil
	}
	// The linker embeds the build information as plain text. This code searches for the text,
	// because the package debug/buildinfo would make every plugin process start more slowly.
	text, err := os.ReadFile(path)
	if bytes.Contains(text, []byte("path\tgithub.com/patchbay-net/patchbay/cmd/patchbay\n")) {
		return "other build", err
	}
	return "other", err
}

// maxProgram is a size in bytes that no build of ours reaches.
const maxProgram = 64 << 20

// dhcpKeepers checks that a keeper answers, because a lease expires if no keeper renews it. The
// keeper may be ours or the reference's.
func dhcpKeepers(ctx context.Context, n *Node) (found []Finding, err error) {
	asked := make(map[string]bool)
	for _, net := range n.Networks {
		for _, m := range net.Members {
			if m.IPAM.Type != "dhcp" {
				continue
			}
			socket := cmp.Or(m.IPAM.Socket, filepath.Join(n.Paths.RunCNI, "dhcp.sock"))
			if asked[socket] {
				continue
			}
			asked[socket] = true
			if err := dial(ctx, socket); err != nil {
				found = append(found, problem(fmt.Sprintf("network %s gets its addresses by DHCP, but no keeper of leases answers at %s: %v", net.Name, socket, err),
					"systemctl enable --now patchbay-dhcp.socket, or without systemd: patchbayd dhcp --detach"))
			}
		}
	}
	return found, nil
}

func dial(ctx context.Context, socket string) error {
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return op.Err
		}
		return err
	}
	return c.Close()
}
