// The types that deploy/monitoring/grafana/tritone.json must have; test_dashboard_types.py puts the dashboard below it.
import type { Dashboard, DataQuery, Panel, RowPanel } from "@grafana/schema";
import type {
  FieldConfig,
  Options,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// As JSON has it: strings in place of enumerations, and no field that the types do not name.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends Array<infer Each>
      ? Array<Plain<Each>>
      : T extends object
        ? { [Name in keyof T]: Plain<T[Name]> }
        : T;
type Defaults = Omit<NonNullable<Panel["fieldConfig"]>["defaults"], "custom"> & { custom?: FieldConfig };
type TimeSeries = Omit<Panel, "type" | "options" | "fieldConfig" | "targets"> & {
  type: "timeseries";
  options: Options;
  fieldConfig: { defaults: Defaults; overrides: [] };
  targets: Array<DataQuery & { expr: string; legendFormat: string }>;
};
export type Ours = Plain<Omit<Dashboard, "panels"> & { panels: Array<TimeSeries | (RowPanel & { type: "row" })> }>;
