// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// wrong is a small runtime that keeps every rule. With a fault, which has the name of a rule, it breaks that rule.
type wrong struct {
	fault   string
	verb    string
	network map[string]any
	version string
	plugins []map[string]any
	cache   string // file
}

// hangLimit is how long the runtime waits for a plugin.
const hangLimit = 3 * time.Second

// runtimeWith is the main function of the runtime. It returns the exit status.
func runtimeWith(fault, verb string) int {
	w := &wrong{fault: fault, verb: verb}
	err := w.load()
	if err == nil {
		err = w.locked(map[string]func() error{"add": w.add, "del": w.del, "check": w.check, "gc": w.gc, "status": w.status}[verb])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// locked runs an operation while a file says so. A kill leaves the file.
func (w *wrong) locked(operation func() error) error {
	lock := filepath.Join(os.Getenv("CACHE_DIR"), "lock")
	if _, err := os.Stat(lock); err == nil && w.fault == "killed" {
		return errors.New("another operation runs")
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		return err
	}
	defer os.Remove(lock)
	return operation()
}

func (w *wrong) load() error {
	files, _ := filepath.Glob(filepath.Join(os.Getenv("NETCONFPATH"), "*.conflist"))
	if len(files) != 1 {
		return fmt.Errorf("networks: %q", files)
	}
	w.cache = filepath.Join(os.Getenv("CACHE_DIR"), os.Getenv("CONTAINERID")+"-"+os.Getenv("CNI_IFNAME"))
	data, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	if first := filepath.Join(os.Getenv("CACHE_DIR"), "network"); w.fault == "reload" {
		if old, err := os.ReadFile(first); err == nil {
			data = old
		} else if err := os.WriteFile(first, data, 0o600); err != nil {
			return err
		}
	}
	return w.use(data)
}

// use decodes a network's configuration.
func (w *wrong) use(data []byte) error {
	w.network, w.plugins = parseObject(string(data)), nil
	w.version = fmt.Sprint(w.network["cniVersion"])
	more, _ := w.network["cniVersions"].([]any)
	for _, v := range more {
		if v := fmt.Sprint(v); v > w.version && v <= "1.1.0" && w.fault != "version-highest" {
			w.version = v
		}
	}
	list, ok := w.network["plugins"].([]any)
	if !ok {
		return errors.New("the network has no plugins")
	}
	for _, p := range list {
		w.plugins = append(w.plugins, p.(map[string]any))
	}
	return w.useDropIns()
}

// useDropIns appends the plugins of the network's directory.
func (w *wrong) useDropIns() error {
	if w.fault == "drop-ins" || w.network["loadOnlyInlinedPlugins"] == true && w.fault != "drop-ins-off" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(os.Getenv("NETCONFPATH"), fmt.Sprint(w.network["name"]), "*.conf"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		w.plugins = append(w.plugins, parseObject(string(data)))
	}
	return nil
}

func (w *wrong) reversed() []map[string]any {
	out := slices.Clone(w.plugins)
	slices.Reverse(out)
	return out
}

// config is the standard input of a plugin.
func (w *wrong) config(verb string, p map[string]any, prev any) []byte {
	out := map[string]any{}
	for key, value := range p {
		if w.fault != "config-unchanged" || value != "" {
			out[key] = value
		}
	}
	out["name"], out["cniVersion"] = w.network["name"], w.version
	if w.fault == "version-older" && w.version == olderVersion {
		out["cniVersion"] = "1.1.0"
	}
	if w.fault == "config-name" {
		delete(out, "name")
	}
	if w.fault != "config-capabilities" {
		delete(out, "capabilities")
	}
	if prev != nil {
		out["prevResult"] = prev
	}
	switch verb {
	case "GC":
		valid := parse("[" + strings.Trim(os.Getenv("VALID_ATTACHMENTS"), "[]") + "]")
		if w.fault == "gc-list" {
			valid = []any{}
		}
		out["cni.dev/valid-attachments"] = valid
	case "ADD", "DEL", "CHECK":
		if share := w.share(p); len(share) > 0 {
			out["runtimeConfig"] = share
		}
	}
	data, _ := json.Marshal(out)
	return data
}

func parse(text string) (v any) {
	_ = json.Unmarshal([]byte(text), &v)
	return v
}

func (w *wrong) share(p map[string]any) map[string]any {
	out := map[string]any{}
	declared, _ := p["capabilities"].(map[string]any)
	for name, value := range parseObject(os.Getenv("CAP_ARGS")) {
		if declared[name] == true || w.fault == "capabilities" {
			out[name] = value
		}
	}
	return out
}

// command is one call of a plugin, not started.
func (w *wrong) command(ctx context.Context, verb string, p map[string]any) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("CNI_PATH"), fmt.Sprint(p["type"])))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+os.Getenv("CONTAINERID"), "CNI_NETNS="+os.Getenv("NETNS"))
	switch {
	case w.fault == "ifname": // which is no rule, but what some runtimes do
		cmd.Env = append(cmd.Env, "CNI_IFNAME=eth0")
	case w.fault == "environment" && verb == "DEL":
		cmd.Env = append(cmd.Env, "CNI_IFNAME=eth9")
	case w.fault == "args" && verb == "DEL":
		cmd.Env = append(cmd.Env, "CNI_ARGS=")
	case w.fault == "descriptors":
		cmd.ExtraFiles = []*os.File{os.Stdin}
	}
	return cmd
}

// call calls a plugin, and returns its result: nil for an answer that the fault accepts.
func (w *wrong) call(verb string, p map[string]any, prev any) (any, error) {
	limit := hangLimit
	if w.fault == "plugin-hangs" {
		limit = time.Hour
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := w.command(ctx, verb, p)
	cmd.Stdin = bytes.NewReader(w.config(verb, p, prev))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if w.fault == "stderr" {
		cmd.Stderr = &stdout
	}
	err := cmd.Run()
	out := parseObject(stdout.String())
	var exit *exec.ExitError
	signal := ctx.Err() == nil && errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
	garbage := out == nil && stdout.Len() > 0
	switch {
	case errors.Is(err, os.ErrNotExist) && w.fault == "plugin-missing",
		signal && w.fault == "plugin-killed",
		err != nil && garbage && w.fault == "error-garbage",
		err == nil && garbage && w.fault == "result-garbage",
		err == nil && stdout.Len() == 0 && w.fault == "result-empty":
		return prev, nil
	case err != nil && !w.silent(verb):
		return nil, fmt.Errorf("%s: %w: %s", p["type"], err, stdout.String())
	case err != nil:
		return nil, errors.New("the plugin failed")
	case verb == "ADD" && out == nil:
		return nil, fmt.Errorf("%s gave no result: %q", p["type"], stdout.String())
	}
	return w.convert(out), nil
}

// silent reports whether the fault keeps the plugin's message.
func (w *wrong) silent(verb string) bool {
	return w.fault == "add-fails" && verb == "ADD" || w.fault == "check-fails" && verb == "CHECK"
}

// convert gives a result the version of the network.
func (w *wrong) convert(out object) any {
	if v := out["cniVersion"]; out == nil || v == w.version || w.fault == "result-older" {
		return map[string]any(out)
	}
	out["cniVersion"] = w.version
	ips, _ := out["ips"].([]any)
	for _, ip := range ips {
		delete(ip.(map[string]any), "version")
	}
	return map[string]any(out)
}

// cached is what the runtime remembers of an attachment.
type cached struct {
	Network map[string]any
	Result  any
	Failed  bool
}

func (w *wrong) remember(c cached) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(w.cache, data, 0o600)
}

func (w *wrong) recall() (c cached) {
	data, err := os.ReadFile(w.cache)
	if err != nil {
		return c
	}
	_ = json.Unmarshal(data, &c)
	if network, err := json.Marshal(c.Network); err == nil && c.Network != nil && w.fault != "del-config" {
		_ = w.use(network)
	}
	return c
}

func (w *wrong) add() error {
	_ = os.Remove(w.tombstone())
	plugins := slices.Clone(w.plugins)
	if w.fault == "add-order" && len(plugins) == 3 {
		plugins[0], plugins[1] = plugins[1], plugins[0]
	}
	var result, first any
	var failed error
	for i, p := range plugins {
		out, err := w.call("ADD", p, result)
		if err != nil {
			failed = err
			if w.fault == "add-fails-halts" && strings.Contains(err.Error(), failText) {
				continue
			}
			break
		}
		if result = out; i == 0 {
			first = out
		} else if w.fault == "add-prev" {
			result = first
		}
		if i == len(plugins)-1 {
			result = out
		}
	}
	if failed != nil {
		if w.fault == "add-fails-del" {
			return errors.Join(failed, w.remember(cached{Failed: true}))
		}
		return failed
	}
	printed := result
	if w.fault == "add-result" {
		printed = first
	}
	if err := json.NewEncoder(os.Stdout).Encode(printed); err != nil {
		return err
	}
	return w.remember(cached{Network: w.network, Result: result})
}

// tombstone is a file that says that the container was detached. It does not name the container.
func (w *wrong) tombstone() string {
	return filepath.Join(os.Getenv("CACHE_DIR"), fmt.Sprintf("%x", crc32.ChecksumIEEE([]byte(w.cache))))
}

func (w *wrong) del() error {
	c := w.recall()
	if w.fault == "add-fails-del" && c.Failed {
		return nil
	}
	if _, err := os.Stat(os.Getenv("NETNS")); err != nil && w.fault == "del-netns-deleted" {
		return nil
	}
	if _, err := os.Stat(w.tombstone()); err == nil {
		return errors.New("no such container")
	}
	if w.fault == "del-prev" || w.version < "0.4.0" {
		c.Result = nil
	}
	plugins := w.reversed()
	if w.fault == "del-order" {
		plugins = w.plugins
	}
	err := w.delAll(plugins, c.Result)
	switch {
	case err != nil && w.fault == "del-fails":
		return nil
	case err != nil && w.fault == "del-fails-again":
		_ = os.Remove(w.cache)
	case err == nil && w.fault == "del-again":
		err = os.WriteFile(w.tombstone(), nil, 0o600)
	}
	if err == nil && w.fault != "cache-removed" {
		_ = os.Remove(w.cache)
	}
	return err
}

func (w *wrong) delAll(plugins []map[string]any, prev any) error {
	var errs []error
	for _, p := range plugins {
		if _, err := w.call("DEL", p, prev); err != nil {
			errs = append(errs, err)
			if w.fault != "del-fails-halts" {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// together starts CHECK of the next plugin before the one before has read its standard input.
func (w *wrong) together(plugins []map[string]any, prev any) error {
	calls := filepath.Join(filepath.Dir(os.Getenv("CNI_PATH")), callsFile)
	begun := func() int { data, _ := os.ReadFile(calls); return bytes.Count(data, []byte(`"begin"`)) }
	var ends []func() error
	for _, p := range plugins {
		cmd := w.command(context.Background(), "CHECK", p)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		before := begun()
		if err := cmd.Start(); err != nil {
			return err
		}
		for begun() == before {
			time.Sleep(time.Millisecond)
		}
		ends = append(ends, func() error {
			_, err := stdin.Write(w.config("CHECK", p, prev))
			err = errors.Join(err, stdin.Close())
			said, _ := io.ReadAll(stdout)
			if werr := cmd.Wait(); werr != nil {
				err = errors.Join(err, fmt.Errorf("%w: %s", werr, said))
			}
			return err
		})
	}
	var errs []error
	for _, end := range ends {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

func (w *wrong) check() error {
	if w.network["disableCheck"] == true && w.fault != "check-disabled" {
		return nil
	}
	if w.version < "0.4.0" && w.fault != "version-verbs" {
		return errors.New("this version has no CHECK")
	}
	c := w.recall()
	plugins := w.plugins
	if w.fault == "check-order" {
		plugins = w.reversed()
	}
	if w.fault == "check-prev" {
		c.Result = nil
	}
	if w.fault == "one-at-a-time" {
		return w.together(plugins, c.Result)
	}
	for _, p := range plugins {
		if _, err := w.call("CHECK", p, c.Result); err != nil {
			return err
		}
	}
	if w.fault == "succeeds" {
		return errors.New("the runtime has a bad day")
	}
	return nil
}

func (w *wrong) gc() error {
	if w.network["disableGC"] == true && w.fault != "gc-disabled" || w.version < "1.1.0" && w.fault != "version-verbs" {
		return nil
	}
	plugins := w.plugins
	if w.fault == "gc-all" {
		plugins = plugins[:2]
	}
	var errs []error
	for _, p := range plugins {
		if _, err := w.call("GC", p, nil); err != nil {
			errs = append(errs, err)
			if w.fault == "gc-fails" {
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (w *wrong) status() error {
	if w.version < "1.1.0" && w.fault != "version-verbs" || w.fault == "status" {
		return nil
	}
	for _, p := range w.plugins {
		if _, err := w.call("STATUS", p, nil); err != nil {
			return err
		}
	}
	return nil
}
