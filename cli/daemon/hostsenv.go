// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// serviceFile is the EnvironmentFile of patchbay-hosts.service. Commands read this file to find
// the store of the running agent.
const serviceFile = "/etc/patchbay/hosts.env"

// service holds the options in that file that the subcommands need.
type service struct {
	Store   string `long:"store"`
	ConfDir string `long:"conf-dir"`
}

// readService reads the file. If the file is missing, it sets nothing. If the file cannot be
// read, it returns an error: a command that used the default store instead would find it empty.
func readService(path string) (s service, err error) {
	data, err := durable.ReadConf(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("find the store of this host: %w: name it with --store", err)
	}
	vars := readEnv(data)
	p := flags.NewParser(&s, flags.IgnoreUnknown)
	if _, err := p.ParseArgs(longFlags(strings.Fields(vars["PATCHBAY_HOSTS_OPTIONS"]))); err != nil { // systemd splits the variable in the same way
		return s, fmt.Errorf("%s: read PATCHBAY_HOSTS_OPTIONS: %w", path, err)
	}
	s.Store = cmp.Or(s.Store, vars["PATCHBAY_STORE"])
	return s, nil
}

// readEnv parses the format of an EnvironmentFile (systemd.exec(5)). Each line is KEY=VALUE,
// with or without quotes; # and ; begin a comment.
func readEnv(data []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(bytes.ReplaceAll(data, []byte("\\\n"), nil))) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || line[0] == '#' || line[0] == ';' {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		out[strings.TrimSpace(key)] = value
	}
	return out
}
