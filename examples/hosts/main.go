// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Hosts is an example of a plugin that is not part of Patchbay. It imports only the public
// packages plugin and spec. It is the last plugin of a chain, and writes one hosts(5) file per
// attachment. A resolver such as dnsmasq (addn-hosts=/run/cni/hosts/NETWORK) can answer queries
// for containers' names from these files:
//
//	{"type": "hosts", "domain": "pods.example"}
//
// Build it into the directory of plugins: go build -o /opt/cni/bin/hosts .
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// dir is constant, so that DEL and GC find a file without a configuration.
const dir = "/run/cni/hosts"

// Conf is the configuration.
type Conf struct {
	Domain string `json:"domain"` // appended to the names; may be empty
}

var hosts = plugin.Plugin{
	Name: "hosts", Kind: plugin.Chained, About: "lists containers in hosts(5) files", MinVersion: "0.3.0",
	Conf: func() any { return new(Conf) },
	Add:  add, Del: del, Check: check, GC: gc, Status: status,
}

func main() { os.Exit(plugin.Main(&hosts)) }

// add returns the result unchanged. It pushes the undo function before it writes the file, so an
// ADD that fails leaves no file.
func add(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	text, err := compile(r)
	if err != nil {
		return nil, err
	}
	if err := r.Step("write hosts file"); err != nil {
		return nil, err
	}
	path := file(r.Network, r.ContainerID, r.IfName)
	r.Undo(func(context.Context) error { return remove(path) })
	return r.Prev(), write(path, text)
}

// compile returns the content of the file. It has no side effects.
func compile(r *plugin.Request) (string, error) {
	var c Conf
	if err := r.Decode(&c); err != nil {
		return "", err
	}
	if strings.ContainsAny(c.Domain, " \t\r\n#") {
		return "", spec.Errorf(spec.CodeInvalidConfig, "invalid domain %.80q", c.Domain)
	}
	if r.Prev() == nil {
		return "", spec.Errorf(spec.CodeInvalidConfig, "must be called as chained plugin")
	}
	name, err := hostName(r)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, ip := range r.Prev().IPs {
		fmt.Fprintf(&b, "%s %s", ip.Address.Addr(), name)
		if c.Domain != "" {
			fmt.Fprintf(&b, ".%s %s", c.Domain, name)
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// hostName returns the pod's name, or the container's id if there is no pod.
func hostName(r *plugin.Request) (string, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return "", err
	}
	name, ok := spec.LookupArg(args, "K8S_POD_NAME")
	if !ok {
		return r.ContainerID, nil
	}
	return name, spec.ValidateContainerID(name) // a name has the same alphabet as an id
}

func del(_ context.Context, r *plugin.Request) error {
	return remove(file(r.Network, r.ContainerID, r.IfName))
}

func check(_ context.Context, r *plugin.Request) error {
	want, err := compile(r)
	if err != nil {
		return err
	}
	path := file(r.Network, r.ContainerID, r.IfName)
	got, err := os.ReadFile(path)
	if err != nil {
		return spec.Errorf(spec.CodeUnknownContainer, "read hosts file: %w", err)
	}
	if string(got) != want {
		return spec.Errorf(spec.CodeInternal, "hosts file %s is not as ADD wrote it", path)
	}
	return nil
}

// gc removes the files of attachments that are no longer valid.
func gc(_ context.Context, r *plugin.Request) error {
	keep, ok := r.Valid()
	if !ok {
		return nil // without a list it must not remove anything
	}
	entries, err := os.ReadDir(filepath.Join(dir, r.Network))
	if err != nil {
		return plugin.IgnoreGone(err, fs.ErrNotExist)
	}
	var errs []error
	for _, e := range entries {
		if id, ifName, ok := strings.Cut(e.Name(), "@"); ok && !keep(id, ifName) {
			errs = append(errs, remove(file(r.Network, id, ifName)))
		}
	}
	return errors.Join(errs...)
}

func status(_ context.Context, r *plugin.Request) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "make directory: %w", err)
	}
	return nil
}

// file returns the path of an attachment's file. The SDK refuses names that would lead to another
// directory, and an id contains no '@'.
func file(network, id, ifName string) string {
	return filepath.Join(dir, network, id+"@"+ifName)
}

// write replaces the whole file by a rename, so a resolver never reads half a file.
func write(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+filepath.Base(path))
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, path)
}

func remove(path string) error { return plugin.IgnoreGone(os.Remove(path), fs.ErrNotExist) }
