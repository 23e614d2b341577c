// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/conformance"
)

// read reads the description of one plugin: a subject, or a network configuration with that plugin in it, of which
// the rest must be asked. Without a file, the suite's own subject of the plugin's name serves. What
// a plugin refuses, its author must say. ask is what the plugin must be asked for the rest, as in a job.
func read(file, pluginType string) (s conformance.Subject, ask string, err error) {
	if file == "" {
		if known, err := conformance.Named(pluginType); err == nil {
			known.Refused = nil
			return *known, askVersions, nil
		}
		return conformance.Subject{Type: pluginType, Name: pluginType}, askAll, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return s, "", fmt.Errorf("read the configuration: %w", err)
	}
	var head struct {
		Kind    string               `json:"kind"`
		Plugins []conformance.Object `json:"plugins"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return s, "", fmt.Errorf("read the configuration %s: %w", file, err)
	}
	if head.Kind != "" {
		if err := json.Unmarshal(data, &s); err != nil {
			return s, "", fmt.Errorf("read the subject %s: %w", file, err)
		}
		s.Type, s.Name = pluginType, pluginType
		return s, askVersions, nil
	}
	conf, err := pluginOf(data, head.Plugins, pluginType)
	return conformance.Subject{Type: pluginType, Name: pluginType, Conf: conf}, askAll, err
}

// pluginOf returns the configuration of a plugin in a network configuration, without what the suite writes itself.
func pluginOf(data []byte, plugins []conformance.Object, pluginType string) (conformance.Object, error) {
	var conf conformance.Object
	if len(plugins) == 0 {
		if err := json.Unmarshal(data, &conf); err != nil {
			return nil, err
		}
	} else {
		i := slices.IndexFunc(plugins, func(p conformance.Object) bool { return string(p["type"]) == fmt.Sprintf("%q", pluginType) })
		if i < 0 {
			return nil, fmt.Errorf("the network configuration has no plugin of type %q: the program's name is its type", pluginType)
		}
		conf = plugins[i]
	}
	for _, key := range []string{"type", "name", "cniVersion", "cniVersions", "prevResult"} {
		delete(conf, key)
	}
	return conf, nil
}

// target is a program to test.
type target struct {
	file    string
	subject conformance.Subject
	ask     string // before the rules, as in a job: what the subject lacks
}

// asks reports whether the subject lacks something.
func (t *target) asks() bool {
	return t.ask != askVersions || t.subject.MinVersion == "" || t.subject.MaxVersion == ""
}

// targets lists the programs of a directory, with their subjects: those of a directory, or the suite's own. unknown are the
// names of programs without a subject.
func targets(dir, subjects string) (list []target, unknown []string, err error) {
	fsys := conformance.Subjects()
	if subjects != "" {
		fsys = os.DirFS(subjects)
	}
	known, err := conformance.Load(fsys)
	if err != nil {
		return nil, nil, err
	}
	for i := range known {
		if subjects == "" {
			known[i].Refused = nil
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list the plugins: %w", err)
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 || e.Name()[0] == '.' {
			continue
		}
		before := len(list)
		for _, s := range known {
			if s.Type == e.Name() {
				list = append(list, target{file, s, askVersions})
			}
		}
		if len(list) == before {
			unknown = append(unknown, e.Name())
		}
	}
	return list, unknown, nil
}
