// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package tuning is the plugin `tuning`. The plugin sets sysctls of the container's namespace and
// attributes of the container's interface. Some devices still exist after the namespace has
// ended, so DEL restores the attributes. Sysctls end with the namespace.
package tuning

import (
	"context"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "tuning"
	noPrev = "Required prevResult missing"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Chained,
	About:        "sets sysctls of the container and attributes of its interface",
	Capabilities: []string{"mac"},
	Conf:         func() any { return new(Conf) },
	NoPrev:       plugin.NoPrev{Add: noPrev, Check: noPrev},

	Files:    []string{name + "/*_*.json"},
	Validate: validate,
	Warnings: doubts,

	Add:   add,
	Del:   del,
	Check: check,
	GC:    gc,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	state, err := compile(r, conf)
	if err != nil {
		return nil, err
	}
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	if conf.attributes() && r.Session.Dry == nil {
		if err := backup(k, r, env, conf); err != nil {
			return nil, err
		}
	}
	if err := k.Apply(ctx, r, env, state); err != nil {
		return nil, err
	}
	return adjust(r, conf), nil
}

// compile computes the desired state. Sysctls come before attributes.
func compile(r *plugin.Request, conf *Conf) (s netstate.State, err error) {
	keys, err := resolveAll(conf.Sysctl, r.IfName, r.Session.Paths.Etc)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		s = append(s, k)
	}
	for _, a := range attributes(conf, r.IfName) {
		s = append(s, a)
	}
	if conf.MTU != 0 {
		s = append(s, peerMTU{r.IfName, conf.MTU})
	}
	return s, nil
}

// backup saves the attributes before the first change. A repeated ADD keeps the backup of the first one, because the
// link now has the first ADD's values.
func backup(k *kernel.Kernel, r *plugin.Request, env *netstate.Env, conf *Conf) error {
	link, err := env.Sandbox.Link(r.IfName)
	if err != nil {
		return spec.Invalid("failed to get %q: %w", r.IfName, err)
	}
	var first saved
	if before := k.Read(r); before != nil && !k.Over(before) {
		if first, err = loadSaved(backupPath(dirOnDel(r, before), r.ContainerID, r.IfName)); err != nil {
			kernel.Warn(r, err)
		}
	}
	dir := dataDir(r, conf.DataDir)
	if err := k.Record(r, &record.Record{DataDir: dir}); err != nil {
		return err
	}
	path := backupPath(dir, r.ContainerID, r.IfName)
	if err := r.Step("backup"); err != nil {
		return err
	}
	r.Undo(func(context.Context) error {
		if first != (saved{}) {
			return first.save(path)
		}
		return removeFile(path)
	})
	return first.or(original(conf, link)).save(path)
}

func dataDir(r *plugin.Request, configured string) string {
	if configured != "" {
		return configured
	}
	return filepath.Join(r.Session.Paths.RunCNI, name)
}

// adjust sets a changed MAC and MTU in the result.
func adjust(r *plugin.Request, conf *Conf) *spec.Result {
	result := r.Prev()
	for i := range result.Interfaces {
		entry := &result.Interfaces[i]
		if entry.Name != r.IfName {
			continue
		}
		if conf.Mac != "" {
			entry.Mac = canonicalMAC(conf.Mac)
		}
		if conf.MTU != 0 && entry.MTU != 0 {
			entry.MTU = conf.MTU
		}
	}
	return result
}

// del restores what ADD saved, if the interface still exists, and deletes the backup. DEL fails
// only if it cannot delete the backup.
func del(_ context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	return k.Detach(r, nil, func(rec *record.Record) error {
		path := backupPath(dirOnDel(r, rec), r.ContainerID, r.IfName)
		s, err := loadSaved(path)
		if err != nil {
			kernel.Warn(r, err)
		}
		if env, err := k.DelEnv(r); err != nil {
			kernel.Warn(r, err)
		} else if env.Sandbox != nil {
			restore(r, env.Sandbox, s)
		}
		return removeFile(path)
	})
}

// dirOnDel prefers the directory in the record, because the configuration may have changed or
// may be unreadable by now.
func dirOnDel(r *plugin.Request, rec *record.Record) string {
	if rec != nil && rec.DataDir != "" {
		return rec.DataDir
	}
	var conf struct {
		DataDir string `json:"dataDir"`
	}
	if err := r.Decode(&conf); err != nil {
		kernel.Warn(r, err)
	}
	return dataDir(r, conf.DataDir)
}

func restore(r *plugin.Request, c *nl.Conn, s saved) {
	link, err := c.Link(r.IfName)
	if err != nil {
		if !nl.IsNotFound(err) {
			kernel.Warn(r, err)
		}
		return
	}
	for _, a := range s.attributes(r.IfName) {
		if err := a.apply(c, link, a.want); err != nil {
			kernel.Warn(r, err)
		}
	}
}

func check(ctx context.Context, r *plugin.Request) error {
	state, err := compile(r, plugin.ConfOf[Conf](r))
	if err != nil {
		return err
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	return kernel.Check(ctx, env, state)
}

// gc removes the backups of attachments that are no longer valid. Their devices were deleted
// with the namespace, or were not restored. The next ADD saves the values of such a device
// again.
func gc(ctx context.Context, r *plugin.Request) error {
	return kernel.Of(r).Sweep(ctx, r, func(rec *record.Record) error {
		return removeFile(backupPath(dataDir(r, rec.DataDir), rec.ContainerID, rec.IfName))
	})
}
