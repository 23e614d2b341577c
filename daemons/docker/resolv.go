// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/spec"
)

// errNoDNS means that a network has cni.dns=replace but its plugins give no DNS server.
var errNoDNS = errors.New("its plugins give no DNS servers (`dns` of the result, for example from an ipam section)")

// resolvConf returns the text of resolv.conf(5) for a chain's DNS. It refuses an entry of more
// than one word.
func resolvConf(dns spec.DNS) (string, error) {
	if len(dns.Nameservers) == 0 {
		return "", errNoDNS
	}
	var out strings.Builder
	line := func(key string, words ...string) error {
		for _, w := range words {
			if w == "" || strings.ContainsFunc(w, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
				return fmt.Errorf("dns: %s %q is not one word", key, w)
			}
		}
		if len(words) > 0 {
			fmt.Fprintf(&out, "%s %s\n", key, strings.Join(words, " "))
		}
		return nil
	}
	var errs []error
	for _, ns := range dns.Nameservers {
		if _, err := netip.ParseAddr(ns); err != nil {
			errs = append(errs, fmt.Errorf("dns: nameserver %q: %w", ns, err))
			continue
		}
		errs = append(errs, line("nameserver", ns))
	}
	if dns.Domain != "" { // before search, because the last of both counts
		errs = append(errs, line("domain", dns.Domain))
	}
	errs = append(errs, line("search", dns.Search...), line("options", dns.Options...))
	return out.String(), errors.Join(errs...)
}

// Docker's file resolv.conf.
const (
	resolvName = "resolv.conf"
	embedded   = "127.0.0.11" // address of the DNS server that Docker runs in each container
	maxResolv  = 64 << 10
)

// replaceDNS writes the chain's DNS into the container's resolv.conf. It keeps the file's
// inode, because the file is mounted into the container. It does not change a file that Docker
// did not write.
func (d *Driver) replaceDNS(n *network, e *state.Endpoint) error {
	result, err := d.result(n, e, e.PostAt)
	if err != nil {
		return err
	}
	text, err := resolvConf(result.DNS)
	if err != nil {
		return fmt.Errorf("%s=replace: %w", optDNS, err)
	}
	f, err := d.openResolv(e.DNS.Path)
	if err != nil {
		return fmt.Errorf("%s=replace: %w", optDNS, err)
	}
	if f == nil {
		d.opts.Log("endpoint %.12s: the container's %s is the user's own: not changed", e.ID, resolvName)
	} else {
		defer f.Close() //nolint:errcheck // write errors are checked
		if err := d.writeDNS(e, f, text); err != nil {
			return err
		}
	}
	e.DNS.Step = state.Done
	return d.save(e)
}

func (d *Driver) writeDNS(e *state.Endpoint, f *os.File, text string) error {
	old, err := readResolv(f)
	if err != nil {
		return err
	}
	switch hash, _ := os.ReadFile(e.DNS.Path + ".hash"); {
	case e.DNS.Step == state.Doing && e.DNS.Mine(old):
		// a call that was killed had already begun to write the file
	case !dockers(old, string(hash)):
		d.opts.Log("endpoint %.12s: %s has been edited: not changed", e.ID, e.DNS.Path)
		return nil
	default:
		e.DNS.Before = old
	}
	e.DNS.After = text
	return d.overwrite(e, f, text)
}

// resolvOf returns the path of a container's resolv.conf, or "" if the user has mounted a file
// there with -v.
func (d *Driver) resolvOf(c *containerFile) string {
	switch _, mounted := c.MountPoints["/etc/"+resolvName]; {
	case mounted:
		return ""
	case c.ResolvConfPath != "":
		return c.ResolvConfPath
	}
	return filepath.Join(d.opts.DataRoot, "containers", c.ID, resolvName)
}

// ownFile makes an endpoint the owner of a file. If another network of the container owns the
// file, ownFile returns an error. The file of an old endpoint with another sandbox does not
// count.
func (d *Driver) ownFile(ctx context.Context, e *state.Endpoint, path string) error {
	if path == "" {
		return nil
	}
	release, err := d.locks.lock(ctx, "file "+path)
	if err != nil {
		return err
	}
	defer release()
	for _, other := range d.alsoOn(e, path) {
		if other.Sandbox == e.Sandbox {
			return fmt.Errorf("%s=replace: another network of the container has this option too, and only one can", optDNS)
		}
	}
	e.DNS.Path = path
	return d.save(e)
}

// alsoOn returns the other endpoints that have taken a file.
func (d *Driver) alsoOn(e *state.Endpoint, path string) (list []*state.Endpoint) {
	all, err := d.state.Endpoints.List()
	if err != nil {
		d.opts.Log("look for %s: %v", path, err) // an endpoint that cannot be read does not matter here
	}
	for _, other := range all {
		if other.ID != e.ID && other.DNS != nil && other.DNS.Path == path {
			list = append(list, other)
		}
	}
	return list
}

// restoreDNS restores Docker's file: a container may only leave this network, and then uses
// Docker's DNS again. If restoreDNS fails, the endpoint is removed all the same.
func (d *Driver) restoreDNS(ctx context.Context, e *state.Endpoint) error {
	if e.DNS == nil || e.DNS.Path == "" {
		return nil
	}
	release, err := d.locks.lock(ctx, "file "+e.DNS.Path)
	if err != nil {
		return err
	}
	defer release()
	// The container may have been started again meanwhile, with another endpoint.
	if e.DNS.After != "" && len(d.alsoOn(e, e.DNS.Path)) == 0 {
		if err := d.putBack(e); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.opts.Log("endpoint %.12s: restore its container's DNS: %v", e.ID, err)
		}
	}
	e.DNS = &state.Resolv{}
	return d.save(e)
}

func (d *Driver) putBack(e *state.Endpoint) error {
	f, err := d.openResolv(e.DNS.Path)
	if f == nil || err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // write errors are checked
	now, err := readResolv(f)
	if err != nil || !e.DNS.Mine(now) {
		return err
	}
	return d.overwrite(e, f, e.DNS.Before)
}

// openResolv opens a container's file. It returns nil if the file is not Docker's, as with `-v
// FILE:/etc/resolv.conf`.
func (d *Driver) openResolv(path string) (*os.File, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // documented
	}
	root, err := filepath.EvalSymlinks(filepath.Join(d.opts.DataRoot, "containers"))
	if err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if id := filepath.Base(dir); filepath.Base(path) != resolvName || filepath.Join(root, id) != dir || !isID(id) {
		return nil, nil //nolint:nilnil // documented
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no regular file", path), err, f.Close())
	}
	return f, nil
}

func readResolv(f *os.File) (string, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxResolv))
	return string(data), err
}

// overwrite first records that it writes. It writes the text and then truncates the file. So
// neither another reader nor a kill finds an empty file.
func (d *Driver) overwrite(e *state.Endpoint, f *os.File, text string) error {
	e.DNS.Step = state.Doing
	if err := d.save(e); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	d.opts.step()
	return f.Truncate(int64(len(text)))
}

// dockers reports whether a resolv.conf is as Docker wrote it. Such a file has the hash that
// Docker stored in another file. Or it names Docker's own DNS server; for such a file Docker
// stores no hash (libnetwork's rebuildDNS).
func dockers(text, hash string) bool {
	sum := sha256.Sum256([]byte(text))
	if strings.TrimSpace(hash) == "sha256:"+hex.EncodeToString(sum[:]) {
		return true
	}
	servers := 0
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		switch {
		case len(w) == 2 && w[0] == "nameserver" && w[1] == embedded:
			servers++
		case len(w) > 0 && w[0] == "nameserver":
			return false
		}
	}
	return servers == 1
}
