// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// Plugin is the configuration of the wrapped plugin, as it would be in a list; required.
	// Reference: none, ours only.
	Plugin json.RawMessage `json:"plugin"`

	// Config changes the configuration that the plugin gets, for every verb. Reference: none,
	// ours only.
	Config *Patch `json:"config"`

	// Result changes the result of ADD, before the commands in around.after get it. The runtime and
	// later plugins get only the changed result. Reference: none, ours only.
	Result *Patch `json:"result"`

	// Around lists, for each verb (ADD, DEL, CHECK, GC, STATUS), the commands to run before and
	// after the plugin. Reference: none, ours only.
	Around map[spec.Verb]Around `json:"around"`

	// Timeout limits the time of each call of the plugin, such as 20s or 1m30s. By default there is
	// no limit. At the limit, an executed plugin is killed with all processes that it started, and
	// DEL rolls back an ADD. Reference: none, ours only.
	Timeout string `json:"timeout"`

	// Retry calls the plugin again if it fails with code 11 (try again later), but not after any
	// other error. Reference: none, ours only.
	Retry Retry `json:"retry"`

	// Log is the absolute path of a file that gets a line of JSON for each step: time,
	// attachment, step, milliseconds, error. It never contains configurations or results.
	// Reference: none, ours only.
	Log string `json:"log"`

	// RuntimeConfig is passed to the plugin: all of it or, if the plugin's configuration declares
	// capabilities, only those. Reference: none, ours only.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`

	// Args are passed to a plugin that has no args. Reference: none, ours only.
	Args json.RawMessage `json:"args"`
}

// Around has the commands for one verb.
type Around struct {
	// Before lists commands to run before the plugin, in order. The first one that fails ends the
	// call, except for DEL and GC. Reference: none, ours only.
	Before []Command `json:"before"`

	// After lists commands to run after the plugin has succeeded; for DEL and GC they always run.
	// A command that fails ends the call; for ADD, the plugin's ADD is rolled back. Reference:
	// none, ours only.
	After []Command `json:"after"`
}

// Command is a program to run. It gets a plugin's environment. Its standard input is the plugin's
// configuration or, after ADD, the result.
type Command struct {
	// Argv is the program, an absolute path, and its arguments. There is no shell. Reference:
	// none, ours only.
	Argv []string `json:"argv"`

	// Timeout limits the command's time; 10s by default. At the limit, the command is killed with
	// all processes that it started. Reference: none, ours only.
	Timeout string `json:"timeout"`

	// MayFail turns a failure into a warning. Reference: none, ours only.
	MayFail bool `json:"mayFail"`

	// Output says what the command's standard output is: merge (JSON Merge Patch) or patch (JSON
	// Patch). Before the plugin it changes the configuration, after ADD the result. By default
	// the output is ignored. Reference: none, ours only.
	Output string `json:"output"`

	timeout time.Duration
}

// Patch changes a JSON document: first by the field Merge, then by the field Patch.
type Patch struct {
	// Merge is a JSON Merge Patch (RFC 7396), an object: its keys replace the document's keys, and
	// null removes a key. Reference: none, ours only.
	Merge json.RawMessage `json:"merge"`

	// Patch is a JSON Patch (RFC 6902): a list of operations. The operation `test` makes a patch conditional. Reference: none, ours only.
	Patch json.RawMessage `json:"patch"`
}

// Retry says how often to try again.
type Retry struct {
	// Times is how often the plugin is called again, 10 at most. Reference: none, ours only.
	Times int `json:"times"`

	// Wait is the time before each new call, 200ms by default. Reference: none, ours only.
	Wait string `json:"wait"`
}

const (
	mostRetries    = 10
	retryWait      = 200 * time.Millisecond
	commandTimeout = 10 * time.Second
)

// wrapped is the configuration in a form for use: with parsed durations, and with a plugin that
// is ready to be called.
type wrapped struct {
	*plugin.Inner
	conf    *Conf
	request *plugin.Request
	timeout time.Duration
	wait    time.Duration
}

// load reads the whole configuration. If it is wrong, load returns an error before any work.
func load(r *plugin.Request) (*wrapped, error) {
	if _, err := r.Conf(); err != nil {
		return nil, err
	}
	conf := plugin.ConfOf[Conf](r)
	w, err := loadPlugin(r, conf)
	if err != nil {
		return nil, err
	}
	if w.timeout, err = duration("timeout", conf.Timeout, 0); err != nil {
		return nil, err
	}
	if w.wait, err = duration("retry.wait", conf.Retry.Wait, retryWait); err != nil {
		return nil, err
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	return w, w.patchConfig()
}

func loadPlugin(r *plugin.Request, conf *Conf) (*wrapped, error) {
	if len(conf.Plugin) == 0 {
		return nil, spec.Invalid("no plugin to wrap: set plugin to a configuration with a type")
	}
	inner, err := plugin.NewInner(r, conf.Plugin, plugin.Given{Caps: conf.RuntimeConfig, Args: conf.Args, AllCaps: true})
	if err != nil {
		return nil, err
	}
	return &wrapped{Inner: inner, conf: conf, request: r}, nil
}

func (c *Conf) validate() error {
	if n := c.Retry.Times; n < 0 || n > mostRetries {
		return spec.Invalid("invalid retry.times %d: must be between 0 and %d", n, mostRetries)
	}
	if c.Log != "" && !clean(c.Log) {
		return spec.Invalid("invalid log %q: must be an absolute path", c.Log)
	}
	for name, p := range map[string]*Patch{"config": c.Config, "result": c.Result} {
		if err := p.validate(); err != nil {
			return spec.Invalid("invalid patch of %s: %w", name, err)
		}
	}
	for _, verb := range slices.Sorted(maps.Keys(c.Around)) {
		if err := c.Around[verb].validate(verb); err != nil {
			return err
		}
	}
	return nil
}

func clean(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

func (a Around) validate(verb spec.Verb) error {
	switch verb {
	case spec.Add, spec.Del, spec.Check, spec.GC, spec.Status:
	default:
		return spec.Invalid("unknown verb %q in around: one of ADD, DEL, CHECK, GC, STATUS", verb)
	}
	for i := range a.Before {
		if err := a.Before[i].validate(verb, "before"); err != nil {
			return err
		}
	}
	for i := range a.After {
		if err := a.After[i].validate(verb, "after"); err != nil {
			return err
		}
	}
	return nil
}

func (c *Command) validate(verb spec.Verb, when string) (err error) {
	if len(c.Argv) == 0 || !clean(c.Argv[0]) {
		return spec.Invalid("invalid argv %q %s %s: must begin with the absolute path of a program", c.Argv, when, verb)
	}
	switch c.Output {
	case "", outputMerge, outputPatch:
	default:
		return spec.Invalid("invalid output %q of %s: must be %s or %s", c.Output, c.Argv[0], outputMerge, outputPatch)
	}
	if c.Output != "" && when == "after" && verb != spec.Add {
		return spec.Invalid("output of %s cannot be used: %s has no result", c.Argv[0], verb)
	}
	c.timeout, err = duration("timeout of "+c.Argv[0], c.Timeout, commandTimeout)
	return err
}

func duration(what, text string, otherwise time.Duration) (time.Duration, error) {
	if text == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, spec.Invalid("invalid %s %q: must be a time such as 500ms or 20s", what, text)
	}
	return d, nil
}
